import { execFileSync } from 'node:child_process'
import { chmodSync, closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { asId, type OrgId } from '../../src/domain/ids.ts'
import { makeSessionPermits } from '../../src/worker/channel/session-permits.ts'
import { DEFAULT_OCI_SETTINGS } from '../../src/worker/drivers/oci/context.ts'
import { TOOLS_FOLDER } from '../../src/contract/workers/guest-tools.ts'
import { findRuntime } from '../../src/worker/drivers/oci/run/runtime/runtime.ts'
import { makeToolbox } from '../../src/worker/drivers/oci/rootfs/toolbox.ts'
import { isInstalled, testRuntime } from './oci-driver.ts'
import { buildRootFolder } from './root-folder.ts'
import type { Container } from '../../src/worker/drivers/oci/container.ts'
import { DEFAULT_SPEC_FOR_TESTS } from './spec.ts'

/** A container of the real OCI runtime under test. Its root file system has dash and coreutils from this machine. */
export type TestContainer = { readonly container: Container; readonly rootfs: string; remove(): void }

/** The properties of a test container that differ from the defaults. */
export type TestContainerOptions = {
  readonly spec?: Partial<Container['spec']>
  readonly image?: Partial<Container['image']>
}

/** The id of the host user to which user 0 of the container is mapped. */
const UID_SHIFT = 100_000

const TOOLS = [
  'dash',
  'cat',
  'sleep',
  'stty',
  'id',
  'head',
  'dd',
  'mkdir',
  'ls',
  'seq',
  'tr',
  'wc',
  'env',
  'md5sum',
  'mkfifo',
  'rm',
  'timeout',
  'setsid',
  'true',
  'echo',
  'pwd',
  'ps',
  'touch',
  'grep',
  'readlink',
  'chmod',
  'ln',
] as const

/** Why no real container can run here; null when one can. */
export function whyNoContainer(): string | null {
  if (process.platform !== 'linux') return 'not Linux'
  if (process.getuid?.() !== 0) return 'not root'
  if (!isInstalled(testRuntime())) return `${testRuntime()} is not installed`
  if (!existsSync('/usr/bin/catatonit')) return 'catatonit is not installed'
  return null
}

/** Starts a container whose first process only reaps children. `remove` ends the container and deletes its files. */
export async function startTestContainer(options: TestContainerOptions = {}): Promise<TestContainer> {
  const runDir = mkdtempSync(join(tmpdir(), 'sandyard-exec-'))
  chmodSync(runDir, 0o700)
  const rootfs = join(runDir, 'rootfs')
  // The container's user 0, who is unprivileged on the host, must be able to pass the folders above its root.
  chmodSync(runDir, 0o711)
  buildRootfs(rootfs)
  const id = basename(runDir).toLowerCase()
  const found = await findRuntime({
    name: testRuntime(),
    searchPath: process.env['PATH'] ?? '',
    stateDir: join(runDir, 'runtime'),
    initBinary: DEFAULT_OCI_SETTINGS.initBinary,
  })
  const runtime = found.command
  const toolbox = await makeToolbox(join(runDir, 'toolbox'))
  writeFileSync(join(runDir, 'config.json'), JSON.stringify(config({ id, rootfs, toolbox })))
  const [file = '', ...args] = [
    ...runtime,
    'run',
    found.name === 'runsc' ? '-detach' : '--detach',
    '--bundle',
    runDir,
    '--pid-file',
    join(runDir, 'pid'),
    id,
  ]
  // The runtime gives its standard streams to the container's user, who must not own the host's /dev/null. Waiting for the
  // end of a pipe would mean waiting for the container's end.
  const output = openSync(join(runDir, 'output'), 'w')
  execFileSync(file, args, { stdio: ['pipe', output, 'inherit'], timeout: 20_000 })
  closeSync(output)
  const initPid = Number(readFileSync(join(runDir, 'pid'), 'utf8'))
  const container: Container = {
    id,
    runtime,
    runtimeName: found.name,
    initPid,
    rootPath: found.name === 'runsc' ? rootfs : `/proc/${String(initPid)}/root`,
    uidShift: UID_SHIFT,
    runDir,
    pipeDir: runDir,
    orgId: asId<OrgId>('org'),
    commandCgroups: [],
    watchMemory: () => () => null,
    spec: { ...DEFAULT_SPEC_FOR_TESTS, ...options.spec },
    image: {
      env: ['PATH=/usr/local/bin:/usr/bin:/bin', 'FROM_IMAGE=image'],
      entrypoint: null,
      cmd: null,
      workdir: null,
      user: null,
      ...options.image,
    },
  }
  return {
    container,
    rootfs,
    remove() {
      const [bin = '', ...rest] = [...runtime, 'delete', '--force', id]
      execFileSync(bin, rest, { stdio: ['ignore', 'ignore', 'inherit'], timeout: 20_000 })
      rmSync(runDir, { recursive: true, force: true })
    },
  }
}

const FOLDERS = [
  'usr/bin',
  'etc',
  'tmp',
  'root',
  'dev',
  'proc',
  'sys',
  'home/alice',
  '.msb/scripts',
  'usr/local/bin',
  'run',
]

function buildRootfs(rootfs: string): void {
  const groups = ['staff:x:50:alice', 'wheel:x:10:alice,root']
  buildRootFolder(rootfs, { tools: [...TOOLS, 'catatonit'], folders: FOLDERS, groups, uidShift: UID_SHIFT })
  writeFileSync(join(rootfs, 'tmp/.msb'), '') // as the driver does, for gVisor
}

type Made = { readonly id: string; readonly rootfs: string; readonly toolbox: string }

function config({ id, rootfs, toolbox }: Made): object {
  const caps = [
    'CAP_CHOWN',
    'CAP_DAC_OVERRIDE',
    'CAP_FOWNER',
    'CAP_SETUID',
    'CAP_SETGID',
    'CAP_KILL',
    'CAP_NET_BIND_SERVICE',
  ]
  return {
    ociVersion: '1.0.2',
    process: {
      terminal: false,
      user: { uid: 0, gid: 0 },
      args: ['/usr/bin/catatonit', '-P'],
      env: ['PATH=/usr/bin:/bin'],
      cwd: '/',
      capabilities: { bounding: caps, effective: caps, permitted: caps },
      noNewPrivileges: true,
    },
    root: { path: rootfs, readonly: false },
    hostname: 'box',
    mounts: [
      { destination: '/proc', type: 'proc', source: 'proc' },
      { destination: TOOLS_FOLDER, type: 'bind', source: toolbox, options: ['bind', 'ro', 'nosuid', 'nodev'] },
      { destination: '/dev', type: 'tmpfs', source: 'tmpfs', options: ['nosuid', 'mode=755', 'size=65536k'] },
      {
        destination: '/dev/pts',
        type: 'devpts',
        source: 'devpts',
        options: ['nosuid', 'noexec', 'newinstance', 'ptmxmode=0666', 'mode=0620'],
      },
    ],
    linux: {
      cgroupsPath: `/sandyard-test/${id}`,
      uidMappings: [{ containerID: 0, hostID: UID_SHIFT, size: 65_536 }],
      gidMappings: [{ containerID: 0, hostID: UID_SHIFT, size: 65_536 }],
      namespaces: ['pid', 'mount', 'ipc', 'uts', 'user', 'network'].map((type) => ({ type })),
    },
  }
}

/** Permits for as many sessions as a test opens. */
export const UNLIMITED_SESSIONS = makeSessionPermits({ perSandbox: Infinity, perOrg: Infinity, total: Infinity })
