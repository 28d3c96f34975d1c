import { homedir } from 'node:os'
import { join } from 'node:path'
import type { Setting } from './settings/setting.ts'
import { findContradiction } from './settings/contradictions.ts'
import { CONNECTION_SETTINGS } from './settings/connections.ts'
import { JOIN_SETTINGS } from './settings/join.ts'
import { KUBERNETES_SETTINGS } from './settings/kubernetes.ts'
import { LIMIT_SETTINGS } from './settings/limits.ts'
import { RETENTION_SETTINGS } from './settings/retention.ts'
import { OUTBOUND_SETTINGS } from './settings/outbound.ts'
import { SERVER_SETTINGS } from './settings/server.ts'
import { SIGN_IN_SETTINGS } from './settings/sign-in.ts'
import { TRACING_SETTINGS } from './settings/tracing.ts'
import { findMisspelling, unknownVariables } from './settings/unknown-variables.ts'
import { WORKER_SETTINGS } from './settings/worker.ts'

/**
 * The error for a setting with an invalid value. The message contains the setting, the value and the accepted values.
 */
export class SettingError extends Error {}

/** The data folder if no setting names one. */
export function defaultDataDir(): string {
  return process.getuid?.() === 0 ? '/var/lib/sandyard' : join(homedir(), '.local/share/sandyard')
}

/** Every setting of Sandyard. The table in docs/settings.md is generated from this object. */
export const SETTINGS = {
  ...SERVER_SETTINGS,
  ...SIGN_IN_SETTINGS,
  ...CONNECTION_SETTINGS,
  ...JOIN_SETTINGS,
  ...WORKER_SETTINGS,
  ...KUBERNETES_SETTINGS,
  ...OUTBOUND_SETTINGS,
  ...LIMIT_SETTINGS,
  ...RETENTION_SETTINGS,
  ...TRACING_SETTINGS,
} as const

const VARIABLES: readonly string[] = Object.values(SETTINGS).map(({ variable }) => variable)

type SettingName = keyof typeof SETTINGS

/** The settings that have a command-line flag as well as an environment variable. */
export type FlagSetting = { [N in SettingName]: (typeof SETTINGS)[N]['flag'] extends string ? N : never }[SettingName]

type ValueOf<S> = S extends { parse: (text: string) => infer R } ? Extract<R, { value: unknown }>['value'] : never
type IsOptional<S> = S extends { fallback: null } ? true : false

/** The value of every setting. Null for a setting that is not given and has no default. */
export type Config = {
  readonly [N in SettingName]: N extends 'dataDir'
    ? string
    : IsOptional<(typeof SETTINGS)[N]> extends true
      ? ValueOf<(typeof SETTINGS)[N]> | null
      : ValueOf<(typeof SETTINGS)[N]>
}

/**
 * Reads every setting from flags and environment variables. A flag overrides its variable. An empty variable counts as
 * not given. Throws `SettingError`, also for settings that contradict each other, and for a variable that looks like a
 * misspelling of a setting: without the setting that is meant, its default would hold.
 */
export function readConfig(env: NodeJS.ProcessEnv, flags: Readonly<Record<string, string | undefined>>): Config {
  const misspelling = findMisspelling(env, VARIABLES)
  if (misspelling !== null)
    throw new SettingError(`${misspelling.variable} is no setting; did you mean ${misspelling.setting}?`)
  const read = <N extends SettingName>(name: N): unknown => {
    const setting: Setting<unknown> = SETTINGS[name]
    const flag = setting.flag === null ? undefined : flags[setting.flag]
    const seen = flag ?? readVariable(env, setting.variable) ?? setting.fallback
    if (seen === null) return name === 'dataDir' ? defaultDataDir() : null
    const parsed = setting.parse(seen)
    if ('value' in parsed) return parsed.value
    const where = flag === undefined ? setting.variable : `--${String(setting.flag)}`
    const shown = setting.isSecret === true ? 'malformed' : JSON.stringify(seen)
    throw new SettingError(`${where} is ${shown}; accepted: ${parsed.accepted}`)
  }
  // The keys of the table are the names of the settings.
  const entries = Object.keys(SETTINGS).map((name) => [name, read(name as SettingName)])
  const contradiction = findContradiction(givenSettings(env, flags))
  if (contradiction !== null) throw new SettingError(contradiction)
  return Object.fromEntries(entries) as Config // `read` parsed each value with the setting of that name
}

/** The variables of the environment that are named like settings and are none, so that they have no effect. */
export function variablesWithoutEffect(env: NodeJS.ProcessEnv): readonly string[] {
  return unknownVariables(env, VARIABLES)
}

/** The settings that flags and environment variables give, as texts by their variables. `readConfig` reads them as variables. */
export function givenSettings(
  env: NodeJS.ProcessEnv,
  flags: Readonly<Record<string, string | undefined>>,
): Readonly<Record<string, string>> {
  const settings: readonly Setting<unknown>[] = Object.values(SETTINGS)
  const given = settings.flatMap(({ flag, variable }) => {
    const text = (flag === null ? undefined : flags[flag]) ?? readVariable(env, variable)
    return text === undefined ? [] : [[variable, text] as const]
  })
  return Object.fromEntries(given)
}

/** Reads a variable. An empty one counts as not given. Those of other programs' proxies are common in lower case too. */
function readVariable(env: NodeJS.ProcessEnv, variable: string): string | undefined {
  const names = variable.endsWith('_PROXY') ? [variable, variable.toLowerCase()] : [variable]
  return names.map((name) => env[name]).find((value) => value !== undefined && value !== '')
}

/** Renders the settings as rows for `--help` and docs/settings.md: variable, flag, default, unit, meaning. */
export function settingRows(): readonly (readonly [string, string, string, string, string])[] {
  const settings: readonly Setting<unknown>[] = Object.values(SETTINGS)
  return settings.map(({ variable, flag, fallback, unit, meaning }) => [
    variable,
    flag === null ? '' : `--${flag}`,
    fallback ?? '',
    unit,
    meaning,
  ])
}
