import { mkdir } from 'node:fs/promises'
import { constants, hostname } from 'node:os'
import { makeFirstOrg } from '../control/bootstrap.ts'
import { registerWorker } from '../control/worker-join.ts'
import { interruptibleSleep, systemClock } from '../lib/clock.ts'
import { makeLog, type Log } from '../lib/log.ts'
import { systemRandom } from '../lib/random.ts'
import { runAgent } from '../worker/agent.ts'
import { makeControlPlane } from '../worker/control-plane.ts'
import type { Driver } from '../worker/drivers/driver.ts'
import { ensureDemoImage } from '../worker/images/demo.ts'
import type { Call, Command } from './command.ts'
import { openDataFolder } from './data-folder.ts'
import { openStore } from './open-store.ts'
import { makeStopSignals } from './stop-signals.ts'
import { startControl, type RunningControl } from './start-control.ts'
import { hostVolumePath, openDriver, openImages } from './start-worker.ts'

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
  const org = first?.org_id ?? null
  if (org !== null) await mkdir(hostVolumePath(config, org), { recursive: true, mode: 0o700 })

  const driver = await tryDriver(() => openDriver(config, folder, log), log)
  const synced = Promise.withResolvers<void>()
  const agent =
    driver === null
      ? null
      : await joinAsWorker({ control, driver, credential: folder.workerCredential, log, onSynced: synced.resolve })
  const working = agent?.(stop.signal) ?? untilAborted(stop.signal)
  if (config.driver === 'oci' && driver !== null) await ensureDemoImage(await openImages(config, log))

  if (agent !== null) await untilSynced(synced.promise, stop.signal)
  missing = driver === null ? 'no driver can run sandboxes here; see `sandyard doctor`' : null
  tellHowToUse(control.url, first?.key ?? null, config.apiKey !== null)
  await working // a worker that can't go on ends the program, with its reason
  if (driver !== null && config.shutdown === 'stop') await stopAll(driver, config.stopGraceMs)
  if (driver !== null) await leave(driver)
  return 0
}

/** Without a driver the API works all the same: what is there can be read, and starts say what they wait for. */
async function tryDriver(open: () => Promise<Driver>, log: Log): Promise<Driver | null> {
  try {
    const driver = await open()
    const { report } = await driver.probe()
    say(`sandboxes run with ${report.name}: ${report.isolation}`)
    return driver
  } catch (error) {
    log.error({ error }, 'no driver')
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
  readonly driver: Driver
  readonly credential: string
  readonly log: Log
  readonly onSynced: () => void
}): Promise<(signal: AbortSignal) => Promise<void>> {
  const { control, driver, credential, log, onSynced } = deps
  const worker_id = await registerWorker(control.deps, { name: LOCAL_WORKER, credential })
  const controlPlane = makeControlPlane({ url: control.url, credential })
  // One process with its control plane, so the two can't be parted: nothing else could run its sandboxes meanwhile.
  return (signal) =>
    runAgent(
      {
        worker_id,
        life: control.deps.uuids.next(),
        driver,
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

async function leave(driver: Driver): Promise<void> {
  const live = (await driver.list()).filter(({ phase }) => phase === 'running')
  if (live.length > 0) {
    say(
      `${String(live.length)} sandboxes go on running; the next start takes them over (SANDYARD_SHUTDOWN=stop ends them)`,
    )
  }
  await driver.close()
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
