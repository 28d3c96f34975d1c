import { constants } from 'node:fs'
import { access, chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { tryCommand, type CommandOptions } from '../../../../../lib/run-command.ts'
import { SANDBOX_IDS } from '../../../../../domain/workers/id-range.ts'

/** What is needed to try gVisor's runtime on this machine. */
type GvisorTrial = {
  readonly binary: string
  /** The folder of the runtime's own state, which the runtime creates. */
  readonly stateDir: string
  /** The path of the sandboxes' init, a static program of the host. With `-V` it prints its version and exits with 0. */
  readonly initBinary: string
}

/** The result of a trial: how gVisor works on this machine, or why it doesn't work. */
type GvisorSupport =
  { readonly command: readonly string[]; readonly platform: GvisorPlatform } | { readonly flaw: string }

/**
 * How gVisor catches system calls, the best way first. systrap comes last because it takes 2 to 3 % of a core for each idle
 * sandbox (measured 2026-11). It is still tried, because later releases may lack ptrace.
 */
const PLATFORMS = ['kvm', 'ptrace', 'systrap'] as const
type GvisorPlatform = (typeof PLATFORMS)[number]

/**
 * Finds the first platform of `PLATFORMS` with which gVisor can run a sandbox on this machine. For each, it runs a
 * trial sandbox with a user namespace and an existing network namespace, as the driver does. Takes a quarter of a
 * second and leaves nothing behind.
 */
export async function findGvisorPlatform(trial: GvisorTrial): Promise<GvisorSupport> {
  const flaws: string[] = []
  for (const platform of PLATFORMS) {
    if (platform === 'kvm' && !(await canOpenKvm())) continue
    const flaw = await tryToRun(trial, platform)
    if (flaw === null) return { command: gvisorCommand(trial, platform), platform }
    flaws.push(`${platform}: ${flaw}`)
  }
  return { flaw: `ran no sandbox when it was tried (${flaws.join('; ')})` }
}

/**
 * Returns gVisor's command line up to the subcommand. On kernels from 6.9 on, gVisor releases until 2024-07 mistake
 * every network namespace for the machine's, because of a file in `/proc/sys/net` (gVisor issue 10704). Therefore each
 * call sees an empty folder there. That covers a part of `/proc`. The kernel then lets a user namespace mount its own
 * `/proc` only while an uncovered `/proc` is mounted elsewhere (mount_namespaces(7); tried with 20240729, 2026-11). The
 * command therefore also mounts one in the covering folder.
 */
function gvisorCommand(
  { binary, stateDir }: Pick<GvisorTrial, 'binary' | 'stateDir'>,
  platform: GvisorPlatform,
): readonly string[] {
  const preparation =
    'mount -t tmpfs none /proc/sys/net && mkdir /proc/sys/net/proc && mount --bind /proc /proc/sys/net/proc'
  return [
    ...inMountNamespace(`${preparation} && exec "$@"`),
    binary,
    `--platform=${platform}`,
    '--overlay2=none', // gVisor's own overlay would exceed the disk's limit
    '--root',
    join(stateDir, 'runsc'),
  ]
}

/**
 * Returns a command prefix that runs the command in its own mount namespace. `script` prepares the namespace and runs the
 * command as `"$@"`.
 */
export function inMountNamespace(script: string): readonly string[] {
  return ['/usr/bin/unshare', '-m', '--propagation', 'slave', '/bin/sh', '-c', script, 'sh']
}

async function canOpenKvm(): Promise<boolean> {
  return await access('/dev/kvm', constants.R_OK | constants.W_OK).then(
    () => true,
    () => false,
  )
}

/**
 * How long a trial may take on each platform. A trial takes 170 ms. If /dev/kvm opens but can't run a machine, gVisor hangs
 * (2026-11).
 */
const TRIAL_TIMEOUT_MS: Readonly<Record<GvisorPlatform, number>> = { kvm: 2_000, ptrace: 10_000, systrap: 10_000 }
/** How many characters of a failed trial's error output are reported. */
const ERROR_LIMIT = 300
const TRIAL_ID = 'trial'
/** The user id shift of trials. Any value except 0, the machine's root, works. */
const TRIAL_UID_SHIFT = 100_000

async function tryToRun({ binary, initBinary }: GvisorTrial, platform: GvisorPlatform): Promise<string | null> {
  const bundle = await mkdtemp(join(tmpdir(), 'sandyard-trial-'))
  const command = gvisorCommand({ binary, stateDir: bundle }, platform)
  const options: CommandOptions = { timeoutMs: TRIAL_TIMEOUT_MS[platform], cwd: '/' }
  try {
    await chmod(bundle, 0o711)
    await mkdir(join(bundle, 'root/proc'), { recursive: true })
    await writeFile(join(bundle, 'root/init'), '')
    await writeFile(join(bundle, 'config.json'), JSON.stringify(trialBundle(join(bundle, 'root'), initBinary)))
    // `unshare -n` creates the network namespace, in place of the one that the driver creates for each sandbox.
    const args = ['-n', ...command, 'run', '--bundle', bundle, TRIAL_ID]
    const { code, stderr } = await tryCommand('unshare', args, options)
    return code === 0 ? null : `exit ${String(code)} ${stderr.trim().slice(-ERROR_LIMIT)}`
  } catch (error) {
    const [file = '', ...args] = command
    await tryCommand(file, [...args, 'delete', '--force', TRIAL_ID], options)
    return error instanceof Error ? error.message : String(error)
  } finally {
    await rm(bundle, { recursive: true, force: true })
  }
}

function trialBundle(rootPath: string, initBinary: string): object {
  const mapping = [{ containerID: 0, hostID: TRIAL_UID_SHIFT, size: SANDBOX_IDS }]
  return {
    ociVersion: '1.0.2',
    process: { user: { uid: 0, gid: 0 }, args: ['/init', '-V'], env: ['PATH=/'], cwd: '/' },
    root: { path: rootPath, readonly: true },
    mounts: [
      { destination: '/proc', type: 'proc', source: 'proc' },
      { destination: '/init', type: 'bind', source: initBinary, options: ['bind', 'ro'] },
    ],
    linux: {
      uidMappings: mapping,
      gidMappings: mapping,
      namespaces: [
        ...['pid', 'mount', 'ipc', 'uts', 'user'].map((type) => ({ type })),
        { type: 'network', path: '/proc/self/ns/net' },
      ],
    },
  }
}
