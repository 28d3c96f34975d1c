import { constants, hostname } from 'node:os'
import type { Config } from '../config.ts'
import { makeFirstOrg } from '../control/bootstrap.ts'
import { registerWorker } from '../control/worker-join.ts'
import { interruptibleSleep, systemClock } from '../lib/clock.ts'
import { makeLog, type Log } from '../lib/log.ts'
import { systemRandom } from '../lib/random.ts'
import { runAgent } from '../worker/agent.ts'
import { makeControlPlane } from '../worker/control-plane.ts'
import type { Driver } from '../worker/drivers/driver.ts'
import { ensureDemoImage } from '../worker/images/demo.ts'
import type { SandboxLogs } from '../worker/logs/logs.ts'
import { makeFilesOf } from '../worker/volumes/files-of.ts'
import type { VolumeStorage } from '../worker/volumes/storage.ts'
import type { Call, Command } from './command.ts'
import { openDataFolder, type DataFolder } from './data-folder.ts'
import { openStore } from './open-store.ts'
import { makeStopSignals } from './stop-signals.ts'
import { startControl, type RunningControl } from './start-control.ts'
import { openDriver } from './open-driver.ts'
import { openImages, openLogs, openStorage, UID_SHIFT } from './start-worker.ts'

/** The worker that runs inside `up`. */
const LOCAL_WORKER = 'local'

export const up: Command = {
  usage: 'up',
  summary: 'the whole cloud on this machine: database, control plane and a worker',
  run: runUp,
}

async function runUp({ config }: Call): Promise<number> {
  const log = makeLog(config.logLevel)
  const stop = makeStopSignals({
    clock: systemClock,
    say,
    force: (name) => process.exit(128 + constants.signals[name]),
  })
  process.on('SIGINT', stop.onSignal)
  process.on('SIGTERM', stop.onSignal)

  const folder = await openDataFolder(config.dataDir, systemRandom, config.secretKey)
  say(`data folder: ${config.dataDir}`)
  say(config.databaseUrl === null ? 'starting the embedded PostgreSQL' : 'using the PostgreSQL of DATABASE_URL')
  await using store = await openStore(config, log)
  await using control = await startControl(config, folder, store, log)
  let missing: string | null = 'starting: the local worker is not ready yet'
  control.addReadiness(() => Promise.resolve(missing))
  const first = await makeFirstOrg(control.deps, config.apiKey)
  const machine = await tryMachine({ config, folder, log })
  const synced = Promise.withResolvers<void>()
  const agent =
    machine === null
      ? null
      : await joinAsWorker({
          control,
          machine,
          config,
          credential: folder.workerCredential,
          log,
          onSynced: synced.resolve,
        })
  const working = agent?.(stop.signal) ?? untilAborted(stop.signal)
  if (machine !== null && machine.driver.name !== 'simulated') await ensureDemoImage(await openImages(config, log))

  if (agent !== null) await untilSynced(synced.promise, stop.signal)
  missing = machine === null ? 'no driver can run sandboxes here; see `sandyard doctor`' : null
  tellHowToUse(control.url, first?.key ?? null, config.apiKey !== null)
  await working // a worker that can't go on ends the program, with its reason
  if (machine !== null && config.shutdown === 'stop') await stopAll(machine.driver, config.stopGraceMs)
  if (machine !== null) await leave(machine)
  return 0
}

/** What runs sandboxes on this machine, and what keeps their volumes and logs. */
type Machine = { readonly driver: Driver; readonly storage: VolumeStorage; readonly logs: SandboxLogs }

/** Without them the API works all the same: what is there can be read, and starts say what they wait for. */
async function tryMachine(deps: {
  readonly config: Config
  readonly folder: DataFolder
  readonly log: Log
}): Promise<Machine | null> {
  try {
    await using opened = new AsyncDisposableStack()
    const storage = opened.adopt(await openStorage(deps.config, deps.log), (one) => one.close())
    say(`volumes: ${storage.report.how}`)
    const logs = opened.adopt(await openLogs(deps.config, deps.log), (one) => one.close())
    const { driver, why } = await openDriver(deps.config, { ...deps, storage, logs })
    const { report } = await driver.probe()
    say(`sandboxes run with the driver ${report.name} (${why}): ${report.isolation}`)
    opened.move()
    return { driver, storage, logs }
  } catch (error) {
    deps.log.error({ error }, 'no driver')
    say(`SANDBOXES CAN'T RUN HERE: ${error instanceof Error ? error.message : String(error)}`)
    say('`sandyard doctor` tells what is missing; the API works, and starts wait until a worker can take them')
    return null
  }
}

/** How long the first sync may take before the address is told all the same, in milliseconds. */
const FIRST_SYNC_MS = 10_000

/** Before the worker's first sync, what ran is told as it was, and what needs an ability of the worker is refused. */
async function untilSynced(synced: Promise<void>, signal: AbortSignal): Promise<void> {
  const over = new AbortController()
  await Promise.race([synced, interruptibleSleep(systemClock, FIRST_SYNC_MS, AbortSignal.any([signal, over.signal]))])
  over.abort()
}

/** Registers the local worker; the answer runs it. */
async function joinAsWorker(deps: {
  readonly control: RunningControl
  readonly machine: Machine
  readonly config: Config
  readonly credential: string
  readonly log: Log
  readonly onSynced: () => void
}): Promise<(signal: AbortSignal) => Promise<void>> {
  const { control, machine, config, credential, log, onSynced } = deps
  const worker_id = await registerWorker(control.deps, { name: LOCAL_WORKER, credential })
  const controlPlane = makeControlPlane({ url: control.url, credential })
  // One process with its control plane, so the two can't be parted: nothing else could run its sandboxes meanwhile.
  return (signal) =>
    runAgent(
      {
        worker_id,
        life: control.deps.uuids.next(),
        ...machine,
        storageSampleMs: config.storageSampleSecs * 1_000,
        filesOf: makeFilesOf({ uidShift: UID_SHIFT, random: systemRandom, log }),
        controlPlane,
        clock: systemClock,
        log,
        fencesItself: false,
        onSynced,
      },
      signal,
    )
}

async function stopAll(driver: Driver, graceMs: number): Promise<void> {
  const live = (await driver.list()).filter(({ phase }) => phase !== 'ended')
  if (live.length > 0) say(`stopping ${String(live.length)} sandboxes`)
  await Promise.all(live.map(({ run_id }) => driver.stop(run_id, graceMs)))
}

async function leave({ driver, storage, logs }: Machine): Promise<void> {
  const live = (await driver.list()).filter(({ phase }) => phase === 'running')
  if (live.length > 0) {
    say(
      `${String(live.length)} sandboxes go on running; the next start takes them over (SANDYARD_SHUTDOWN=stop ends them)`,
    )
  }
  await driver.close()
  await logs.close()
  await storage.close()
}

function tellHowToUse(url: string, key: string | null, isGiven: boolean): void {
  say(`ready on ${url} (${hostname()})`)
  process.stdout.write(`\nexport MSB_BACKEND=cloud\nexport MSB_API_URL=${url}\n`)
  if (key === null)
    process.stdout.write('export MSB_API_KEY=…    # yours; `npx sandyard key create` makes another one\n')
  else if (isGiven) process.stdout.write('export MSB_API_KEY="$SANDYARD_API_KEY"    # the key that you gave\n')
  else
    process.stdout.write(
      `export MSB_API_KEY=${key}\n\n# The key is shown this once. Then, in another terminal:  npx msb run localhost/demo -- uname -a\n`,
    )
}

function untilAborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}

function say(text: string): void {
  process.stdout.write(`sandyard: ${text}\n`)
}
