import { SETTINGS, type Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Call } from '../command.ts'
import { printStatus } from '../print-status.ts'
import type { DataFolder } from '../server/data-folder.ts'
import { readOwnerUrl, type Store } from '../server/open-store.ts'
import type { RunningControl } from '../server/start-control.ts'
import { superviseServers, type SupervisedServers } from './supervise-servers.ts'

type SharedPort = {
  /** The settings that this process was given. */
  readonly given: Call['given']
  readonly config: Config
  readonly folder: DataFolder
  readonly store: Pick<Store, 'connectionString'>
  readonly control: Pick<RunningControl, 'url'>
  readonly log: Log
}

/** Starts the further server processes that SANDYARD_PROCESSES asks for, on the database and the port of this one. */
export async function sharePort({
  given,
  config,
  folder,
  store,
  control,
  log,
}: SharedPort): Promise<SupervisedServers> {
  const { processes } = config
  if (processes > 1) printStatus(`${String(processes)} server processes share the port of the API`)
  const owner = config.databaseUrl === null ? await readOwnerUrl(config) : config.databaseOwnerUrl
  const settings = {
    ...given,
    [SETTINGS.dataDir.variable]: config.dataDir,
    [SETTINGS.databaseUrl.variable]: store.connectionString,
    ...(owner === null ? {} : { [SETTINGS.databaseOwnerUrl.variable]: owner }),
    [SETTINGS.port.variable]: new URL(control.url).port,
    [SETTINGS.sshPort.variable]: 'off', // one SSH server suffices: its sessions are few
  }
  return superviseServers({ clock: systemClock, log, processes, start: { settings, folder } })
}
