/**
 * Starts a sandbox without a control plane, as the limit for starts through Sandyard. Disk, mounts, network, shim,
 * runtime and commands are the same as the worker's. The commands run one after another.
 */
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { chmod, chown, mkdir, mkdtemp, open, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { chooseRuntime } from '../../src/cli/worker/open-oci-driver.ts'
import { openImages, UID_SHIFT } from '../../src/cli/worker/worker-storage.ts'
import { readConfig } from '../../src/config.ts'
import { asId, type OrgId } from '../../src/domain/ids.ts'
import { normalizeSpec } from '../../src/domain/spec/normalize-spec.ts'
import type { SandboxSpec } from '../../src/domain/spec/spec.ts'
import { makeLog } from '../../src/lib/log.ts'
import { runCommand, tryCommand } from '../../src/lib/run-command.ts'
import { makeBundle } from '../../src/worker/drivers/oci/run/runtime/bundle.ts'
import { DEFAULT_OCI_SETTINGS } from '../../src/worker/drivers/oci/context.ts'
import type { Runtime } from '../../src/worker/drivers/oci/run/runtime/runtime.ts'

const COMMAND_TIMEOUT_MS = 20_000

/** The duration of each step in milliseconds. `total` is their sum. */
export type RawSteps = {
  readonly disk: number
  readonly mounts: number
  readonly network: number
  readonly runtime: number
  readonly total: number
}

export type RawStarter = {
  /** Prepares one sandbox, starts it and removes it. */
  start(): Promise<RawSteps>
  /**
   * Prepares everything that this many containers need. Each function in the result creates and starts one container.
   * Closing the starter removes them all.
   */
  prepare(count: number): Promise<readonly (() => Promise<void>)[]>
} & AsyncDisposable

/**
 * Creates a starter that uses the image and the runtime of an installation. After each start it removes everything that
 * it created.
 */
export async function makeRawStarter(dataDir: string, body: Readonly<Record<string, unknown>>): Promise<RawStarter> {
  const config = readConfig({ SANDYARD_DATA_DIR: dataDir }, {})
  const normalized = normalizeSpec(body)
  if ('refusal' in normalized) throw new Error(`the body was refused: ${JSON.stringify(normalized.refusal)}`)
  const { spec } = normalized.normalized
  const images = await openImages(config, makeLog('error'))
  const signal = AbortSignal.timeout(COMMAND_TIMEOUT_MS)
  const org = asId<OrgId>(randomUUID())
  const image = await images.resolve(spec.image, { org, policy: 'if_missing', auth: null, signal })
  const base = await mkdtemp('/tmp/sandyard-raw-')
  await chmod(base, 0o711)
  const runtime = await chooseRuntime({ ...config, dataDir: base })
  let made = 0
  const prepared: { readonly dir: string; readonly name: string; readonly runtime: Runtime }[] = []
  const nextPlace = async () => {
    const name = `syraw${String(++made)}`
    const dir = join(base, name)
    await mkdir(dir, { mode: 0o711 })
    return { dir, name }
  }
  return {
    async prepare(count) {
      for (let n = 0; n < count; n++) {
        const { dir, name } = await nextPlace()
        prepared.push({ dir, name, runtime })
        await makeDisk(dir, config.diskMib)
        await mountAll(dir, image.layers)
        await makeNetwork(name)
      }
      return prepared.slice(-count).map(
        ({ dir, name }) =>
          () =>
            runContainer({ dir, name, spec, runtime }),
      )
    },
    async start() {
      const { dir, name } = await nextPlace()
      try {
        const at = [performance.now()]
        const lap = (): number => at.push(performance.now())
        await makeDisk(dir, config.diskMib)
        lap()
        await mountAll(dir, image.layers)
        lap()
        await makeNetwork(name)
        lap()
        await runContainer({ dir, name, spec, runtime })
        lap()
        const [disk = 0, mounts = 0, network = 0, run = 0] = at.slice(1).map((ms, index) => ms - (at[index] ?? ms))
        return { disk, mounts, network, runtime: run, total: disk + mounts + network + run }
      } finally {
        await cleanUp({ dir, name, runtime })
      }
    },
    async [Symbol.asyncDispose]() {
      for (const one of prepared) await cleanUp(one)
      await rm(base, { recursive: true, force: true })
    },
  }
}

async function makeDisk(dir: string, sizeMib: number): Promise<void> {
  const file = await open(join(dir, 'disk.img'), 'w', 0o600)
  await file.truncate(sizeMib * 1024 * 1024)
  await file.close()
  const features = ['-O', '^has_journal', '-E', 'lazy_itable_init=1,nodiscard', '-m', '0']
  await command(['mkfs.ext4', '-q', '-F', ...features, join(dir, 'disk.img')])
}

async function mountAll(dir: string, layers: readonly string[]): Promise<void> {
  for (const name of ['disk', 'root']) await mkdir(join(dir, name), { mode: 0o711 })
  const disk = join(dir, 'disk')
  await command(['mount', '-t', 'ext4', '-o', 'loop,nosuid,nodev,noatime', join(dir, 'disk.img'), disk])
  await chmod(disk, 0o711)
  for (const name of ['upper', 'work']) await mkdir(join(disk, name), { mode: 0o755 })
  await chown(join(disk, 'upper'), UID_SHIFT, UID_SHIFT)
  const options = `nodev,lowerdir=${layers.toReversed().join(':')},upperdir=${disk}/upper,workdir=${disk}/work`
  await command(['mount', '-t', 'overlay', 'overlay', '-o', options, join(dir, 'root')])
}

/**
 * Creates a network namespace with a veth pair to the host and a packet filter. The addresses are from the range for
 * benchmarks (RFC 2544).
 */
async function makeNetwork(name: string): Promise<void> {
  await command(['ip', 'netns', 'add', name])
  const host = [`link add ${name} type veth peer name eth0 netns ${name}`, `addr add 198.18.0.1/30 dev ${name}`]
  await command(['ip', '-b', '-'], [...host, `link set ${name} up`])
  const inside = ['link set lo up', 'addr add 198.18.0.2/30 dev eth0', 'link set eth0 up']
  await command(['ip', '-n', name, '-b', '-'], [...inside, 'route add default via 198.18.0.1'])
  await command(['nsenter', `--net=/run/netns/${name}`, 'nft', '-f', '-'], FILTER)
}

const FILTER: readonly string[] = [
  'add table inet raw_start',
  'add chain inet raw_start out { type filter hook output priority filter; policy drop; }',
  'add rule inet raw_start out ct state established,related accept',
  'add rule inet raw_start out oifname lo accept',
  'add rule inet raw_start out ip daddr { 10.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16 } drop',
  'add rule inet raw_start out accept',
]

type Start = {
  readonly dir: string
  readonly name: string
  readonly spec: SandboxSpec
  readonly runtime: Runtime
}

const SHIM = `dir=$1 id=$2; shift 2
"$@" create --bundle "$dir" --pid-file "$dir/pid" "$id" <<END >>"$dir/log" 2>&1 && "$@" start "$id" >>"$dir/log" 2>&1
END`

async function runContainer({ dir, name, spec, runtime }: Start): Promise<void> {
  const bundle = makeBundle({
    spec,
    hostname: name,
    rootPath: join(dir, 'root'),
    uidShift: UID_SHIFT,
    userNamespacePath: null,
    namesMappings: true,
    netnsPath: `/run/netns/${name}`,
    cgroupsPath: `/sandyard-raw/${name}`,
    initBinary: DEFAULT_OCI_SETTINGS.initBinary,
    toolbox: null,
    devicesPath: null,
    init: null,
    workload: null,
    user: { uid: 0, gid: 0, additionalGids: [], home: '/root' },
    env: ['PATH=/usr/bin:/bin'],
    workdir: '/',
    rlimits: [],
    mounts: [],
    architecture: process.arch,
  })
  await writeFile(join(dir, 'config.json'), JSON.stringify(bundle))
  const shim = spawn('/bin/sh', ['-c', SHIM, 'raw-shim', dir, name, ...runtime.command], {
    detached: true,
    stdio: 'ignore',
    cwd: '/',
  })
  const [code] = await once(shim, 'exit')
  if (code !== 0) throw new Error(`the runtime could not start the container; see ${join(dir, 'log')}`)
}

async function cleanUp({ dir, name, runtime }: Omit<Start, 'spec'>): Promise<void> {
  await tryCommand(runtime.command[0] ?? '', [...runtime.command.slice(1), 'delete', '--force', name], LIMIT)
  for (const mount of ['root', 'disk']) await tryCommand('umount', [join(dir, mount)], LIMIT)
  await tryCommand('ip', ['link', 'del', name], LIMIT)
  await tryCommand('ip', ['netns', 'del', name], LIMIT)
  await rm(dir, { recursive: true, force: true })
}

const LIMIT = { timeoutMs: COMMAND_TIMEOUT_MS }

async function command([file = '', ...args]: readonly string[], input?: readonly string[]): Promise<void> {
  await runCommand(file, args, { ...LIMIT, ...(input === undefined ? {} : { input: `${input.join('\n')}\n` }) })
}
