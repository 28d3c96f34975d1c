import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import type { RunId } from '../../src/domain/ids.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeLog } from '../../src/lib/log.ts'
import { tryCommand, type CommandResult } from '../../src/lib/run-command.ts'
import type { Driver } from '../../src/worker/drivers/driver.ts'
import { StartError } from '../../src/worker/start-error.ts'
import type { ImageResolver } from '../../src/worker/drivers/shared/desired-run.ts'
import { mountPointsBelow } from '../../src/worker/mounts.ts'
import type { MicrosandboxDriverInput } from '../../src/worker/drivers/microsandbox/context.ts'
import { makeMicrosandboxDriver } from '../../src/worker/drivers/microsandbox/driver.ts'
import {
  findInstallation,
  vmEnvironment,
  vmPaths,
  findMissingMicroVmRequirements,
  type MicrosandboxInstallation,
} from '../../src/worker/drivers/microsandbox/installation.ts'
import { SDK_CALL_MARK } from '../../src/worker/drivers/microsandbox/sdk-client.ts'
import { findProcesses } from '../../src/worker/drivers/microsandbox/vm-process.ts'
import { openVmRunRecords } from '../../src/worker/drivers/microsandbox/vm-records.ts'
import { WATCHER_MARK } from '../../src/worker/drivers/microsandbox/start-workload.ts'
import { DEMO_REFERENCE, ensureDemoImage } from '../../src/worker/images/demo.ts'
import { NO_DISK_RESERVE } from '../../src/worker/disk-reserve.ts'
import { openImageStore } from '../../src/worker/images/image-store.ts'
import { type SandboxLogs, makeNoLogs } from '../../src/worker/logs/logs.ts'
import { makeNoMetrics } from '../../src/worker/metrics/sandbox-metrics.ts'
import { makeEmptyNetworks } from './empty-networks.ts'
import { outboundHttp } from './outbound-http.ts'
import { makePlainVolumes } from './plain-volumes.ts'

const UID_SHIFT = 200_000

/** Why no microVM can run on this machine. Null if one can. */
export async function whyNoMicroVms(): Promise<string | null> {
  const lacks = await findMissingMicroVmRequirements()
  return lacks.length === 0 ? null : `NO microVM WAS STARTED: ${lacks.join('; ')}. npm run test:microvm runs this`
}

/** A real `microsandbox` driver with a folder of its own and the demo image. */
export type MicroVmFixture = {
  readonly dir: string
  readonly home: string
  readonly stateDir: string
  readonly installation: MicrosandboxInstallation
  open(overrides?: Partial<MicrosandboxDriverInput>): Promise<Driver>
  /** Runs a command in a sandbox by the runtime's own exec. */
  exec(run: RunId, command: readonly string[]): Promise<CommandResult>
  /** Lists the mounts and processes of all runs, including live runs. */
  leftovers(): Promise<readonly string[]>
  /** The folder of the default volume, once a run has mounted it. */
  readonly volume: string
  remove(): Promise<void>
}

/**
 * Creates the fixture. Throws without the npm package. The folder isn't on tmpfs, where the runtime can't store file
 * owners.
 */
export async function makeMicroVmFixture(logs: Pick<SandboxLogs, 'writerOf'> = makeNoLogs()): Promise<MicroVmFixture> {
  const installation = findInstallation()
  if (installation === null) throw new Error('the optional npm package microsandbox is not installed')
  const dir = mkdtempSync('/var/tmp/sandyard-vm-')
  const stateDir = join(dir, 'state')
  const home = join(stateDir, 'home')
  const images = await makeImages(join(dir, 'images'))
  const log = makeLog(process.env['SANDYARD_TEST_LOG'] === undefined ? 'silent' : 'debug')
  return {
    dir,
    home,
    stateDir,
    installation,
    volume: join(dir, 'volumes', 'host'),
    open: (overrides = {}) =>
      makeMicrosandboxDriver({
        dir: stateDir,
        installation,
        images: images.forDriver,
        imageDigests: images.digests,
        volumes: makePlainVolumes(join(dir, 'volumes'), UID_SHIFT),
        logs,
        metrics: makeNoMetrics(),
        networks: makeEmptyNetworks(`sandyard-vm-${String(process.pid)}-`),
        clock: systemClock,
        random: systemRandom,
        log,
        settings: {
          defaultDiskMib: 512,
          maxDiskMib: 65_536,
          uidShift: UID_SHIFT,
          cpuOvercommit: 4,
          hostReserveMib: null,
          diskOvercommit: 64,
          diskReserve: NO_DISK_RESERVE,
        },
        ...overrides,
      }),
    async exec(run, command) {
      const record = (await openVmRunRecords(stateDir)).read(run)
      if (record === null) throw new Error('no such run')
      const args = ['exec', '-q', vmPaths(home, record.sandbox_id).name, '--', ...command]
      return await tryCommand(installation.msb, args, { timeoutMs: 120_000, env: vmEnvironment(home), input: '' })
    },
    async leftovers() {
      const mounts = await mountPointsBelow(join(stateDir, 'mounts'))
      const found = await Promise.all(
        [['sandbox', '--name'], [SDK_CALL_MARK], [WATCHER_MARK]].map((words) => findOwn(words, home)),
      )
      return [...mounts, ...found.flat()]
    },
    remove() {
      rmSync(dir, { recursive: true, force: true, maxRetries: 3 })
      return Promise.resolve()
    },
  }
}

/** Finds the runtime's processes whose environment has this home folder. Other tests may run further ones. */
async function findOwn(words: readonly string[], home: string): Promise<readonly string[]> {
  const marks = await findProcesses(words)
  const own = await Promise.all(
    marks.map(async ({ pid }) => {
      const { stdout } = await tryCommand('cat', [`/proc/${String(pid)}/environ`], { timeoutMs: 5000 })
      return stdout.split('\0').includes(`MSB_HOME=${home}`) ? [`${words.join(' ')} ${String(pid)}`] : []
    }),
  )
  return own.flat()
}

async function makeImages(
  dir: string,
): Promise<{ readonly forDriver: ImageResolver; readonly digests: () => Promise<readonly string[]> }> {
  const log = makeLog('silent')
  const deps = {
    dir,
    uidShift: UID_SHIFT,
    clock: systemClock,
    log,
    http: outboundHttp(),
    defaultRegistry: 'registry.example',
  }
  const store = await openImageStore(deps)
  await ensureDemoImage(store)
  return {
    digests: async () => [(await store.inspect(DEMO_REFERENCE))?.digest ?? ''],
    forDriver: {
      async resolve(reference, options) {
        if (reference.endsWith('/slow')) await systemClock.sleep(600_000, options.signal)
        if (!reference.startsWith('local/')) throw new StartError('image', `no image '${reference}'`)
        return await store.resolve(DEMO_REFERENCE, options)
      },
      list: () => Promise.resolve(['local/box']),
    },
  }
}
