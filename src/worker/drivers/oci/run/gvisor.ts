import { constants } from 'node:fs'
import { access, chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { tryCommand, type CommandOptions } from '../../../../lib/run-command.ts'
import { USER_NAMESPACE_SIZE } from '../rootfs/users.ts'

/** What is needed to try gVisor's runtime on this machine. */
export type GvisorTrial = {
  readonly binary: string
  /** Where the runtime keeps its own state; made by it. */
  readonly stateDir: string
  /** A static program of the host that prints its version for `-V` and exits with 0: the init of sandboxes. */
  readonly initBinary: string
}

/** How gVisor works here, or in words why it doesn't. */
export type GvisorSupport =
  { readonly command: readonly string[]; readonly platform: GvisorPlatform } | { readonly flaw: string }

/**
 * How gVisor catches system calls, the best first. systrap comes last: it burns 2 to 3 % of a core per idle sandbox
 * (runtime-notes 6, measured 2026-11), but releases may come that have no ptrace.
 */
const PLATFORMS = ['kvm', 'ptrace', 'systrap'] as const
type GvisorPlatform = (typeof PLATFORMS)[number]

/**
 * Finds the platform on which gVisor runs a sandbox here, by running one: with a user namespace and a network namespace
 * of the host's, as the driver's are. Takes a quarter of a second; leaves nothing.
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
 * The command line up to its subcommand. Until 2024-07 gVisor takes every network namespace of a kernel from 6.9 on for
 * the machine's, by a file below /proc/sys/net (gVisor issue 10704): each call sees an empty folder there. A user
 * namespace then has the kernel's leave to mount a /proc of its own only while an uncovered one is mounted somewhere,
 * which lies in that folder (mount_namespaces(7); tried with 20240729, 2026-11).
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
    '--overlay2=none', // its own overlay would write past the disk's limit
    '--root',
    join(stateDir, 'runsc'),
  ]
}

/** The words before a command that give it a mount namespace of its own; the script runs it as `"$@"`. */
export function inMountNamespace(script: string): readonly string[] {
  return ['/usr/bin/unshare', '-m', '--propagation', 'slave', '/bin/sh', '-c', script, 'sh']
}

async function canOpenKvm(): Promise<boolean> {
  return await access('/dev/kvm', constants.R_OK | constants.W_OK).then(
    () => true,
    () => false,
  )
}

/** A trial takes 170 ms; where /dev/kvm opens and its machines don't run, gVisor waits for ever (2026-11). */
const TRIAL_TIMEOUT_MS: Readonly<Record<GvisorPlatform, number>> = { kvm: 2_000, ptrace: 10_000, systrap: 10_000 }
/** The last words of a failed trial that are told. */
const WORDS_LIMIT = 300
const TRIAL_ID = 'trial'
/** Any user that is not the machine's root. */
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
    // The namespace of this very call stands for a sandbox's, which the driver makes beforehand.
    const args = ['-n', ...command, 'run', '--bundle', bundle, TRIAL_ID]
    const { code, stderr } = await tryCommand('unshare', args, options)
    return code === 0 ? null : `exit ${String(code)} ${stderr.trim().slice(-WORDS_LIMIT)}`
  } catch (error) {
    const [file = '', ...args] = command
    await tryCommand(file, [...args, 'delete', '--force', TRIAL_ID], options)
    return error instanceof Error ? error.message : String(error)
  } finally {
    await rm(bundle, { recursive: true, force: true })
  }
}

function trialBundle(rootPath: string, initBinary: string): object {
  const mapping = [{ containerID: 0, hostID: TRIAL_UID_SHIFT, size: USER_NAMESPACE_SIZE }]
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
