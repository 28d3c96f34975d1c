import { SETTINGS } from '../../config.ts'
import type { Setting } from '../../settings/setting.ts'

/** An environment without settings of Sandyard and of database clients: they may be secrets, and a child gets its own by a message. */
export function environmentWithoutSettings(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const settings: readonly Setting<unknown>[] = Object.values(SETTINGS)
  const names = new Set(settings.flatMap(({ variable }) => [variable, variable.toLowerCase()]))
  return Object.fromEntries(
    Object.entries(env).filter(([name]) => !names.has(name) && !/^(SANDYARD_|DATABASE_|PG|OTEL_)/.test(name)),
  )
}
