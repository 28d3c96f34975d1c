import { SETTINGS } from '../../config.ts'
import type { Setting } from '../../settings/setting.ts'

/** The secrets that a worker needs: those of a proxy, through which it pulls images, and of its own metrics. */
const SECRETS_OF_WORKERS: readonly Setting<unknown>[] = [SETTINGS.httpsProxy, SETTINGS.metricsKey]

/** Whether the worker of `up` gets a setting. Secrets of the server stay in the server. */
function isForWorkers(setting: Setting<unknown>): boolean {
  return setting.isSecret !== true || SECRETS_OF_WORKERS.includes(setting)
}

/** The settings that were given to `up`, for its worker. `changed` are values that `up` has determined. */
export function workerSettings(
  given: Readonly<Record<string, string>>,
  changed: Readonly<Record<string, string>>,
): Readonly<Record<string, string>> {
  const settings: readonly Setting<unknown>[] = Object.values(SETTINGS)
  const own = settings.filter(isForWorkers).map(({ variable }) => variable)
  return {
    ...Object.fromEntries(own.flatMap((name) => (name in given ? [[name, given[name] ?? '']] : []))),
    ...changed,
  }
}
