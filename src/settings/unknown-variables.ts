import { isMisspelt } from '../domain/edit-distance.ts'

const PREFIX = 'SANDYARD_'

/** Variables of the set-up, of the tests, and those that Kubernetes sets for a Service whose name begins with `sandyard-`. */
const FOR_OTHERS = /^SANDYARD_(?:SETUP$|TEST_|.*SERVICE_(?:HOST|PORT)|(?:.*_)?PORT_\d+_)/

/** The variables that are named like settings, have a value, and are none. */
export function unknownVariables(env: NodeJS.ProcessEnv, settings: readonly string[]): readonly string[] {
  return Object.keys(env).filter(
    (name) => name.startsWith(PREFIX) && env[name] !== '' && !FOR_OTHERS.test(name) && !settings.includes(name),
  )
}

/** The first variable whose name looks like a misspelling of a setting, with that setting. Null if there is none. */
export function findMisspelling(
  env: NodeJS.ProcessEnv,
  settings: readonly string[],
): { readonly variable: string; readonly setting: string } | null {
  const pairs = unknownVariables(env, settings).flatMap((variable) =>
    settings
      .filter((setting) => setting.startsWith(PREFIX))
      .filter((setting) => isMisspelt(variable.slice(PREFIX.length), setting.slice(PREFIX.length)))
      .map((setting) => ({ variable, setting })),
  )
  return pairs[0] ?? null
}
