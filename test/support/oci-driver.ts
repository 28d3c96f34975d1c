import {
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { readdir } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { PassThrough, type Duplex } from 'node:stream'
import { asId, type RunId } from '../../src/domain/ids.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { hasErrorCode } from '../../src/lib/error-code.ts'
import type { Log } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { runCommand, tryCommand, type CommandResult } from '../../src/lib/run-command.ts'
import type { Driver } from '../../src/worker/drivers/driver.ts'
import { StartError } from '../../src/worker/start-error.ts'
import type { Container } from '../../src/worker/drivers/oci/container.ts'
import { DEFAULT_OCI_SETTINGS, type OciDriverInput, type OciSettings } from '../../src/worker/drivers/oci/context.ts'
import type { ImageResolver } from '../../src/worker/drivers/shared/desired-run.ts'
import { POOLED_DISK_PREFIX } from '../../src/worker/drivers/oci/disk/sandbox-disks.ts'
import { makeCommandHelper } from '../../src/worker/processes/command-helper.ts'
import { makeLauncher } from '../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { makeForkServers } from '../../src/worker/drivers/oci/exec/fork-servers.ts'
import { makeOciDriver } from '../../src/worker/drivers/oci/driver.ts'
import { mountPointsBelow } from '../../src/worker/mounts.ts'
import { folderHash } from './folder-hash.ts'
import { processCapabilities } from '../../src/worker/drivers/oci/run/runtime/capabilities.ts'
import { sandboxEnvironment } from '../../src/worker/drivers/oci/environment.ts'
import { containerIdOf, type OciRunRecord } from '../../src/worker/drivers/oci/run/run-records.ts'
import { findRuntime, RUNTIME_NAMES, type RuntimeName } from '../../src/worker/drivers/oci/run/runtime/runtime.ts'
import { PIPE_FOLDER } from '../../src/worker/drivers/oci/run/pipe-folder.ts'
import { TOOLBOX_PREFIX } from '../../src/worker/drivers/oci/rootfs/toolbox.ts'
import type { ImageConfig } from '../../src/worker/images/image.ts'
import { type SandboxLogs, makeNoLogs } from '../../src/worker/logs/logs.ts'
import { makeNoMetrics } from '../../src/worker/metrics/sandbox-metrics.ts'
import type { VolumeStorage } from '../../src/worker/volumes/volume-storage.ts'
import { makeEmptyNetworks } from './empty-networks.ts'
import { makePlainVolumes } from './plain-volumes.ts'
import { buildRootFolder } from './root-folder.ts'

const UID_SHIFT = 200_000
/** How often `leftovers` looks again, every 100 ms, whether the kernel has freed a loop device. */
const FREED_LOOKS = 100
/** The default of SANDYARD_UID_RANGE. */
const UID_RANGE = { first: 1_879_048_192, last: 2_147_352_575 }

/** The OCI runtime under test: the one that SANDYARD_TEST_RUNTIME names, or crun. */
export function testRuntime(): RuntimeName {
  return RUNTIME_NAMES.find((name) => name === process.env['SANDYARD_TEST_RUNTIME']) ?? 'crun'
}

/** How many warm sandboxes the drivers under test keep: as many as SANDYARD_TEST_WARM says, or none. */
export function testWarm(): number {
  return Number(process.env['SANDYARD_TEST_WARM'] ?? 0)
}

/** Why the `oci` driver can't run on this machine. Null if it can. */
export function whyNoOci(): string | null {
  if (process.platform !== 'linux' || process.getuid?.() !== 0) return 'needs Linux and root'
  const programs = [testRuntime(), 'catatonit', 'mkfs.ext4', 'ip', 'nsenter']
  const missing = programs.find((name) => !isInstalled(name))
  return missing === undefined ? null : `${missing} is not installed`
}

/** Whether a program is on the path. */
export function isInstalled(name: string): boolean {
  return (process.env['PATH'] ?? '').split(delimiter).some((folder) => existsSync(join(folder, name)))
}

/** A real `oci` driver with a folder of its own, and an image with programs of this machine. */
export type OciFixture = {
  readonly dir: string
  /** The folder of the default volume. */
  readonly volume: string
  /** The path of a volume's folder, even before the volume exists. */
  volumeFolder(id: string): string
  readonly layer: string
  readonly image: { config: ImageConfig }
  readonly settings: OciSettings
  /** The folders that the driver tries to map. A test may name others before it opens the driver. */
  readonly folders: { images: string; volumes: string }
  /** The lines that the driver logged, with their fields. */
  readonly logged: { fields: object; message: string }[]
  /** Opens a driver. `parts` replace parts of the fixture, such as its networks. */
  open(overrides?: Partial<OciSettings>, parts?: Partial<OciDriverInput>): Promise<Driver>
  /** Runs a command in a sandbox by the runtime's own exec. */
  exec(run: RunId, command: readonly string[]): Promise<CommandResult>
  container(run: RunId): Container
  /** The id of a run's container: the run's own, or that of the warm sandbox that it took. */
  containerIdOf(run: RunId): RunId
  /** The cgroup in which the kernel counts a run's processor time. */
  cpuCgroupOf(run: RunId): string
  /** The mounts, network namespaces, loop devices and cgroups of this driver's runs, without those of warm sandboxes. */
  leftovers(): Promise<readonly string[]>
  remove(): Promise<void>
}

/**
 * Creates a fixture, or opens the fixture of another process by its folder. `remove` deletes its files. By default,
 * volumes are plain folders and sandboxes have no logs.
 */
export async function makeOciFixture(
  existing?: string,
  volumes?: Pick<VolumeStorage, 'open'> & Partial<Pick<VolumeStorage, 'folderLimits'>>,
  logs: SandboxLogs = makeNoLogs(),
  parent = tmpdir(),
): Promise<OciFixture> {
  const dir = existing ?? mkdtempSync(join(parent, 'sandyard-oci-'))
  const stateDir = join(dir, 'state')
  const layer = join(dir, 'layer')
  const volumeFolder = (id: string): string => join(dir, 'volumes', id)
  const volume = volumeFolder('host')
  if (existing === undefined) {
    mkdirSync(volume, { recursive: true })
    chownSync(volume, UID_SHIFT, UID_SHIFT)
    buildLayer(layer)
  }
  const prefix = `sy${folderHash(stateDir).slice(0, 6)}-`
  const runtime = await findRuntime({
    name: testRuntime(),
    searchPath: process.env['PATH'] ?? '',
    stateDir: join(dir, 'runtime'),
    initBinary: DEFAULT_OCI_SETTINGS.initBinary,
  })
  const image = {
    config: {
      env: ['PATH=/usr/bin:/bin', 'FROM_IMAGE=yes'],
      entrypoint: null,
      cmd: ['false'],
      workdir: null,
      user: null,
    } as ImageConfig,
  }
  const containers = new Map<RunId, Container>()
  // the driver's own file
  const readRecord = (run: RunId): OciRunRecord =>
    JSON.parse(readFileSync(join(stateDir, 'runs', run, 'state.json'), 'utf8')) as OciRunRecord
  /** The containers of no run, while a driver keeps warm sandboxes. Their folders go last. */
  const warmIds = (): readonly string[] => {
    const runs = join(stateDir, 'runs')
    const names = existsSync(runs) ? readdirSync(runs) : []
    return names.filter((name) => !existsSync(join(runs, name, 'state.json')))
  }
  const logged: { fields: object; message: string }[] = []
  const settings: OciSettings = {
    ...DEFAULT_OCI_SETTINGS,
    uidShift: UID_SHIFT,
    uidRange: UID_RANGE,
    defaultDiskMib: 512,
    readyAhead: 1,
    warm: testWarm(),
  }
  const folders = { images: dir, volumes: join(dir, 'volumes') }
  const fixture: OciFixture = {
    dir,
    volume,
    volumeFolder,
    layer,
    image,
    settings,
    folders,
    logged,
    open: (overrides = {}, parts = {}) => {
      const log = collectLog(logged)
      const launcher = parts.launcher ?? makeLauncher(log)
      return makeOciDriver({
        dir: stateDir,
        key: folderHash(stateDir),
        runtime,
        images: makeImages(layer, image),
        networks: makeEmptyNetworks(prefix),
        clock: systemClock,
        launcher,
        forkServers: makeForkServers({ launcher, clock: systemClock, log }),
        commands: makeCommandHelper(collectLog(logged)).commands,
        log: collectLog(logged),
        random: systemRandom,
        folders,
        volumes: {
          promisedBytes: () => 0,
          folderLimits: null,
          ...(volumes ?? makePlainVolumes(join(dir, 'volumes'), UID_SHIFT)),
        },
        logs,
        metrics: makeNoMetrics(),
        connectGuest: () => Promise.resolve(null),
        openGuestChannel: (container, use) => {
          containers.set(asId<RunId>(container.id), container)
          return echo(use.touch)
        },
        settings: { ...settings, ...overrides },
        ...parts,
      })
    },
    async exec(run, command) {
      const record = readRecord(run)
      const spec = join(dir, `exec-${systemRandom.bytes(4).toString('hex')}.json`)
      const profile = record.spec.security_profile
      const process_ = {
        terminal: false,
        user: { uid: 0, gid: 0 },
        args: command,
        env: sandboxEnvironment(record.spec, image.config, '/root'),
        cwd: '/',
        capabilities: processCapabilities(profile),
        noNewPrivileges: profile === 'restricted',
      }
      writeFileSync(spec, JSON.stringify(process_))
      const [file = '', ...args] = [...runtime.command, 'exec', '--process', spec, containerIdOf(record)]
      return await tryCommand(file, args, { timeoutMs: 20_000 })
    },
    container(run) {
      const container = containers.get(run) ?? containers.get(containerIdOf(readRecord(run)))
      if (container === undefined) throw new Error('no channel was opened')
      return container
    },
    containerIdOf: (run) => containerIdOf(readRecord(run)),
    cpuCgroupOf(run) {
      const root = existsSync('/sys/fs/cgroup/cpu') ? '/sys/fs/cgroup/cpu' : '/sys/fs/cgroup'
      return join(root, 'sandyard', folderHash(stateDir), containerIdOf(readRecord(run)))
    },
    async leftovers() {
      const own = join('/run/sandyard', folderHash(stateDir))
      const mounts = (await mountPointsBelow(own)).filter(
        (point) =>
          point !== own &&
          ![POOLED_DISK_PREFIX, TOOLBOX_PREFIX, PIPE_FOLDER].some((prefix) => point.startsWith(join(own, prefix))),
      )
      const namespaces = existsSync('/run/netns')
        ? (await readdir('/run/netns')).filter((name) => name.startsWith(prefix))
        : []
      // Warm sandboxes are made meanwhile, so they are read after what they could have.
      const withoutWarm = (lines: readonly string[]): readonly string[] => {
        const warm = warmIds()
        return lines.filter((line) => !warm.some((id) => line.includes(id)))
      }
      const loopsNow = async () =>
        withoutWarm(
          (await tryCommand('losetup', ['-a'], { timeoutMs: 5000 })).stdout
            .split('\n')
            .filter((line) => line.includes(stateDir) && !line.includes(POOLED_DISK_PREFIX)),
        )
      let loops = await loopsNow()
      // A container that another test starts has copies of all mounts for a moment, and they keep a disk's loop device.
      for (let looks = 0; loops.length > 0 && looks < FREED_LOOKS; looks++) {
        await systemClock.sleep(100)
        loops = await loopsNow()
      }
      return withoutWarm([...mounts, ...namespaces, ...loops, ...cgroupsOf(folderHash(stateDir))])
    },
    async remove() {
      for (const name of existsSync('/run/netns') ? await readdir('/run/netns') : []) {
        if (name.startsWith(prefix)) await runCommand('ip', ['netns', 'delete', name], { timeoutMs: 10_000 })
      }
      rmSync(dir, { recursive: true, force: true })
    },
  }
  return fixture
}

function makeImages(layer: string, image: { config: ImageConfig }): ImageResolver {
  return {
    async resolve(reference, { signal }) {
      if (reference.endsWith('/slow')) await systemClock.sleep(30_000, signal)
      if (!reference.startsWith('local/')) throw new StartError('image', `no image '${reference}'`)
      return {
        reference,
        digest: `sha256:${'0'.repeat(64)}`,
        config: image.config,
        layers: reference.endsWith('/empty') ? [] : [layer],
      }
    },
    list: () => Promise.resolve(['local/box']),
  }
}

/** A stream that echoes its input and calls `onPiece` for each piece of it. */
function echo(onPiece: () => void): Duplex {
  return new PassThrough({
    transform(piece, _encoding, done) {
      onPiece()
      done(null, piece)
    },
  })
}

function collectLog(logged: { fields: object; message: string }[]): Log {
  const write = (fields: object, message: string): void => {
    logged.push({ fields, message })
  }
  const log: Log = { debug: write, info: write, warn: write, error: write, child: () => log }
  return log
}

/** The cgroups below those of this driver, in all hierarchies. */
function cgroupsOf(name: string): readonly string[] {
  const top = '/sys/fs/cgroup'
  const parents = [top, ...foldersIn(top)].map((folder) => join(folder, 'sandyard', name))
  return parents.flatMap(foldersBelow)
}

function foldersBelow(folder: string): readonly string[] {
  return foldersIn(folder).flatMap((inner) => [inner, ...foldersBelow(inner)])
}

/** The paths of the folders in a folder. Empty if the folder does not exist. */
function foldersIn(folder: string): readonly string[] {
  try {
    const entries = readdirSync(folder, { withFileTypes: true })
    return entries.filter((entry) => entry.isDirectory()).map((entry) => join(folder, entry.name))
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return []
    throw error
  }
}

const TOOLS = [
  'dash', 'cat', 'sleep', 'id', 'head', 'dd', 'mkdir', 'mkfifo', 'mknod', 'ls', 'seq', 'tr', 'wc', 'env', 'rm', 'true', 'false', 'echo', 'pwd',
  'touch', 'grep', 'readlink', 'chmod', 'chown', 'ln', 'hostname', 'mount', 'umount', 'unshare', 'stat', 'perl', 'setpriv', 'nproc', 'df', 'timeout', 'date',
] as const // prettier-ignore

function buildLayer(layer: string): void {
  const folders = ['usr/bin', 'etc', 'tmp', 'root', 'home/alice', 'run', 'var']
  mkdirSync(join(layer, 'var'), { recursive: true })
  symlinkSync('/run', join(layer, 'var/run'))
  symlinkSync('/../../../../../../../tmp', join(layer, 'escape'))
  buildRootFolder(layer, { tools: TOOLS, folders, groups: ['staff:x:50:alice'], uidShift: UID_SHIFT })
}
