import { createHash } from 'node:crypto'
import { open, realpath, stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { hasErrorCode } from '../../lib/error-code.ts'
import { CommandError, tryCommand } from '../../lib/run-command.ts'

/** A file of the host that the demo image contains: its path on the host (`source`) and its path in the image. */
type HostFile = { readonly source: string; readonly path: string }
/** A symlink in the image. Its name is that of a program, and it leads to the program's file. */
type ProgramLink = { readonly path: string; readonly target: string }

/** The host's programs for the demo image. */
export type HostPrograms = {
  readonly files: readonly HostFile[]
  readonly links: readonly ProgramLink[]
  /** Changes when a program of the host changes. */
  readonly fingerprint: string
}

/** A shell and common programs. The image omits programs that the host doesn't have. */
export const DEMO_PROGRAMS: readonly string[] = [
  'sh bash dash grep egrep fgrep sed awk mawk find xargs tar gzip gunzip zcat diff cmp getopt getent hostname ip',
  'ps top free kill pgrep pkill uptime setsid flock prlimit stty tty mount umount mountpoint more',
  'arch b2sum base32 base64 basename cat chgrp chmod chown cksum comm cp csplit cut date dd df dirname du echo env',
  'expand expr factor false fmt fold groups head id install join link ln ls md5sum mkdir mkfifo mktemp mv nice nl nohup',
  'nproc numfmt od paste pathchk pr printenv printf pwd readlink realpath rm rmdir seq sha1sum sha256sum sha512sum shred',
  'shuf sleep sort split stat sum sync tac tail tee test [ timeout touch tr true truncate tsort uname unexpand uniq',
  'unlink wc whoami yes',
].flatMap((line) => line.split(' '))

const PROGRAM_FOLDERS = ['/usr/bin', '/bin', '/usr/sbin', '/sbin'] as const
const LDD_TIMEOUT_MS = 20_000

/**
 * Finds programs by name. Doesn't find their libraries (see `findLibraries`), so that checking the programs for changes
 * is cheap.
 */
export async function findHostPrograms(names: readonly string[]): Promise<HostPrograms> {
  const found = (await Promise.all(names.map(findProgram))).filter((program) => program !== null)
  const files = new Map(found.map(({ source }) => [source, { source, path: usrMergedPath(source) }]))
  const facts = await Promise.all(
    [...files.keys()].map(async (source) => {
      const { size, mtimeMs } = await stat(source)
      return `${source} ${String(size)} ${String(mtimeMs)}`
    }),
  )
  const links = found
    .map(({ path, source }) => ({ path: usrMergedPath(path), target: usrMergedPath(source) }))
    .filter(({ path, target }) => path !== target)
  const fingerprint = createHash('sha256')
    .update(JSON.stringify([facts.sort(), links]))
    .digest('hex')
  return { files: [...files.values()], links, fingerprint }
}

/** Finds the shared libraries and loaders that programs need, with `ldd`. */
export async function findLibraries(programs: readonly HostFile[]): Promise<readonly HostFile[]> {
  const result = await tryCommand(
    'ldd',
    programs.map(({ source }) => source),
    { timeoutMs: LDD_TIMEOUT_MS },
  )
  const paths = [...result.stdout.matchAll(/(\/\S+) \(0x[0-9a-f]+\)/g)].flatMap(([, path]) => path ?? [])
  if (paths.length === 0) throw new CommandError('ldd', [], result)
  return Promise.all([...new Set(paths)].map(hostFileAt))
}

/** Returns those of the given paths that are files on this host. */
export async function findHostFiles(paths: readonly string[]): Promise<readonly HostFile[]> {
  const found = await Promise.all(paths.map(async (path) => ((await isFile(path)) ? [await hostFileAt(path)] : [])))
  return found.flat()
}

async function findProgram(name: string): Promise<{ readonly path: string; readonly source: string } | null> {
  for (const folder of PROGRAM_FOLDERS) {
    const path = join(folder, name)
    if (!(await isFile(path))) continue
    const source = await realpath(path)
    if (await canRunInDemo(source)) return { path, source }
  }
  return null
}

const MAGIC_BYTES = 16
const ELF_MAGIC = '\x7fELF'

/** Whether a program is an executable binary, or a script for a shell that the image contains. */
async function canRunInDemo(path: string): Promise<boolean> {
  const file = await open(path, 'r')
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(MAGIC_BYTES), 0, MAGIC_BYTES, 0)
    const head = buffer.toString('latin1', 0, bytesRead)
    return head.startsWith(ELF_MAGIC) || /^#! ?\/bin\/(?:ba)?sh\s/.test(head)
  } finally {
    await file.close()
  }
}

/**
 * Describes a file of the host. A library keeps the name under which programs load it. Its content is that of the
 * symlink's target.
 */
async function hostFileAt(path: string): Promise<HostFile> {
  return { source: await realpath(path), path: usrMergedPath(join(await realpath(dirname(path)), basename(path))) }
}

/**
 * Converts a host path to the path in the image. In the image, /bin, /sbin and /lib* are symlinks into /usr, even if
 * they are folders on the host.
 */
function usrMergedPath(path: string): string {
  return path.replace(/^\/(bin|sbin|lib|lib32|lib64|libx32)\//, '/usr/$1/')
}

async function isFile(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isFile()
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT', 'ENOTDIR')) return false
    throw error
  }
}

/** The contents of the demo image other than the host's programs and their libraries. */

type DemoFolder = { readonly path: string; readonly mode: number; readonly uid?: number; readonly gid?: number }

const DEMO_UID = 1000
const STICKY_MODE = 0o1777

export const DEMO_FOLDERS: readonly DemoFolder[] = [
  ...[
    'dev',
    'etc',
    'etc/ssl',
    'etc/ssl/certs',
    'home',
    'mnt',
    'opt',
    'proc',
    'run',
    'srv',
    'sys',
    'usr',
    'usr/bin',
    'usr/lib',
    'usr/lib64',
    'usr/local',
    'usr/local/bin',
    'usr/sbin',
    'var',
    'var/lib',
    'var/log',
  ].map((path) => ({ path, mode: 0o755 })),
  { path: 'root', mode: 0o700 },
  { path: 'tmp', mode: STICKY_MODE },
  { path: 'var/tmp', mode: STICKY_MODE },
  { path: 'home/demo', mode: 0o755, uid: DEMO_UID, gid: DEMO_UID },
]

export const DEMO_LINKS = ['bin', 'sbin', 'lib', 'lib64'].map((name) => ({ path: `/${name}`, target: `usr/${name}` }))

const LIBRARY_FOLDERS = ['/usr/lib', '/usr/lib64', '/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu'] as const

/**
 * Files that the image contains if the host has them: libraries that name resolution loads at run time, certificates
 * for TLS clients, and descriptions of terminals.
 */
export const DEMO_EXTRA_FILES: readonly string[] = [
  '/etc/ssl/certs/ca-certificates.crt',
  ...LIBRARY_FOLDERS.flatMap((folder) =>
    ['libnss_files.so.2', 'libnss_dns.so.2', 'libresolv.so.2'].map((name) => `${folder}/${name}`),
  ),
  ...['d/dumb', 'l/linux', 'v/vt100', 's/screen', 'x/xterm', 'x/xterm-256color'].map((name) => `/lib/terminfo/${name}`),
]

/** Files that are written for the image. They define the users root, nobody and `demo` (1000). */
export function demoFiles(): readonly { readonly path: string; readonly content: string }[] {
  const id = String(DEMO_UID)
  return [
    {
      path: 'etc/passwd',
      content: [
        'root:x:0:0:root:/root:/bin/sh',
        `demo:x:${id}:${id}:demo:/home/demo:/bin/sh`,
        'nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin',
        '',
      ].join('\n'),
    },
    { path: 'etc/group', content: ['root:x:0:', 'tty:x:5:', `demo:x:${id}:`, 'nogroup:x:65534:', ''].join('\n') },
    { path: 'etc/nsswitch.conf', content: ['passwd: files', 'group: files', 'hosts: files dns', ''].join('\n') },
    {
      path: 'etc/os-release',
      content: ['ID=sandyard-demo', 'NAME="Sandyard demo"', 'PRETTY_NAME="Sandyard demo image"', ''].join('\n'),
    },
  ]
}
