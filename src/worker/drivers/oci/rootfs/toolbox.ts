import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, mkdir, mkdtemp, readdir, readFile, realpath, rename, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { runCommand, localCommands } from '../../../../lib/run-command.ts'
import { TOOLBOX } from '../../../../contract/workers/guest-tools.ts'
import type { Log } from '../../../../lib/log.ts'
import { mount, mountPointsBelow } from '../../../mounts.ts'

/** The prefix of the names of toolbox mounts. All other mounts of the driver belong to runs and disks. */
export const TOOLBOX_PREFIX = 'toolbox-'

/**
 * Creates this machine's toolbox with the init program, in a readonly tmpfs in the driver's mount folder, and returns its path.
 * A bind mount of a folder or program of the machine would show their paths in `/proc/self/mountinfo` of each sandbox. Some
 * runtimes mount as the sandbox's user 0, who may enter the mount folder. Returns null if the toolbox can't be created; sandboxes
 * then run without file operations.
 */
export async function mountToolbox(
  folders: { readonly dir: string; readonly mountDir: string },
  initBinary: string,
  log: Log,
): Promise<string | null> {
  try {
    const files = await collectFiles(initBinary)
    const point = join(folders.mountDir, `${TOOLBOX_PREFIX}${nameOf(files)}`)
    await mkdir(point, { recursive: true })
    if (!(await mountPointsBelow(folders.mountDir)).includes(point))
      await mount(localCommands, ['-t', 'tmpfs', '-o', `nosuid,nodev,mode=755,size=${SIZE}`, 'tmpfs', point])
    const toolbox = await makeToolbox(point, files)
    await mount(localCommands, ['-o', 'remount,ro', point])
    await removeStoredToolboxes(folders)
    return toolbox
  } catch (error) {
    log.warn({ error }, 'the toolbox could not be created: sandboxes have no file operations')
    return null
  }
}

/** The most that a toolbox may take of the machine's memory. Perl and its libraries take about 10 MiB. */
const SIZE = '64m'

/** Deletes the toolboxes that earlier releases stored on disk, unless sandboxes of such a release still run. */
async function removeStoredToolboxes(folders: { readonly dir: string; readonly mountDir: string }): Promise<void> {
  const parent = join(folders.dir, 'toolbox')
  if (!existsSync(parent)) return
  const mounted = new Set(await readdir(folders.mountDir))
  const unused = (await readdir(parent)).filter((name) => !mounted.has(`${TOOLBOX_PREFIX}${name}`))
  for (const name of unused) await rm(join(parent, name), { recursive: true, force: true })
}

/** The path of the init program of a toolbox that `mountToolbox` created. */
export function initOf(toolbox: string): string {
  return join(toolbox, INIT)
}

/**
 * Creates a folder with the programs that the worker runs in sandboxes, because images may contain no programs. It contains
 * this machine's perl with its loader and libraries, our scripts, and the modules that the scripts use. The folder is created
 * atomically in `parent` and has a hash of its content as its name. An existing folder is used again. Rejects when the machine
 * has no perl to copy.
 */
export async function makeToolbox(parent: string, given: readonly ToolFile[] | null = null): Promise<string> {
  const files = given ?? (await collectFiles(null))
  const path = join(parent, nameOf(files))
  await mkdir(parent, { recursive: true })
  const names = await readdir(parent)
  await Promise.all(names.filter(isUnfinished).map((name) => rm(join(parent, name), { recursive: true })))
  if (names.includes(nameOf(files))) return path
  const unfinished = await mkdtemp(join(parent, UNFINISHED_PREFIX))
  for (const { name, content, mode } of files) await put(join(unfinished, name), content, mode)
  // Everyone may read the toolbox, because the sandbox's users are unprivileged on this machine.
  for (const folder of foldersOf(files)) await chmod(join(unfinished, folder), 0o755)
  await rename(unfinished, path)
  return path
}

/** Whether a folder is an unfinished toolbox: it is being created, or a worker was killed while creating it. */
function isUnfinished(name: string): boolean {
  return name.startsWith(UNFINISHED_PREFIX)
}

const UNFINISHED_PREFIX = 'unfinished-'

const { loader: LOADER, libraries: LIBRARIES, perl: PERL, modules: PERL_MODULES } = TOOLBOX
const INIT = 'init'

/** The modules that the scripts use, and the modules that those load on demand. */
const MODULES = ['strict.pm', 'warnings.pm', 'constant.pm', 'warnings/register.pm', 'bytes.pm', 'integer.pm', 'Carp.pm', 'Carp/Heavy.pm', 'Exporter.pm', 'Exporter/Heavy.pm', 'XSLoader.pm', 'Fcntl.pm', 'Errno.pm', 'Socket.pm'] // prettier-ignore

/**
 * A perl program that prints the path of perl, the name and file of each loaded module, and the file of each loaded library.
 */
const LIST = `eval { require $_ } for @ARGV; require Socket; require Fcntl;
print "perl\\t$^X\\n";
print "module\\t$_\\t$INC{$_}\\n" for sort keys %INC;
print "object\\t$_\\n" for @DynaLoader::dl_shared_objects`

const COMMAND_TIMEOUT_MS = 20_000
const SCRIPTS = join(import.meta.dirname, '../../../perl/guest')

export type ToolFile = { readonly name: string; readonly content: Buffer; readonly mode: number }

/** Reads the files of a toolbox from this machine, with the init program if one is given. */
export async function collectFiles(initBinary: string | null): Promise<readonly ToolFile[]> {
  // Variables such as PERL5LIB would load modules of the user who started the worker.
  const env = { PATH: process.env['PATH'], LC_ALL: 'C' }
  const { stdout } = await runCommand('perl', ['-e', LIST, ...MODULES], { timeoutMs: COMMAND_TIMEOUT_MS, env })
  const rows = stdout.split('\n').map((line) => line.split('\t'))
  const perl = await realpath(rows.find(([kind]) => kind === 'perl')?.[1] ?? 'perl')
  const modules = rows.flatMap(([kind, name, path]) =>
    kind === 'module' && name !== undefined && path !== undefined ? [{ name: `${PERL_MODULES}/${name}`, path }] : [],
  )
  const objects = rows.flatMap(([kind, path]) => (kind === 'object' && path !== undefined ? [path] : []))
  const { stdout: needed } = await runCommand('ldd', [perl, ...objects], { timeoutMs: COMMAND_TIMEOUT_MS, env })
  const scripts = (await readdir(SCRIPTS)).map((name) => ({ name, path: join(SCRIPTS, name) }))
  const found = [
    { name: PERL, path: perl },
    ...(initBinary === null ? [] : [{ name: INIT, path: initBinary }]),
    ...librariesIn(needed),
    ...objects.flatMap((path) => {
      const [name] = /auto\/.+\.so$/.exec(path) ?? []
      return name === undefined ? [] : [{ name: `${PERL_MODULES}/${name}`, path }]
    }),
    ...modules,
    ...scripts,
  ]
  const unique = [...new Map(found.map((file) => [file.name, file])).values()]
  return await Promise.all(
    unique.map(async ({ name, path }) => ({
      name,
      content: await readFile(path),
      mode: [PERL, LOADER, INIT].includes(name) ? 0o755 : 0o644,
    })),
  )
}

/**
 * Parses the output of ldd(1). Returns each library with the name that programs use to load it. The loader's name is its path.
 */
export function librariesIn(listing: string): readonly { readonly name: string; readonly path: string }[] {
  return listing.split('\n').flatMap((line) => {
    const [, asked, path] = /^\s*(\S+) => (\/\S+) \(/.exec(line) ?? []
    if (asked !== undefined && path !== undefined) {
      return [{ name: asked.startsWith('/') ? LOADER : `${LIBRARIES}/${asked}`, path }]
    }
    const [, loader] = /^\s*(\/\S+) \(/.exec(line) ?? []
    return loader === undefined ? [] : [{ name: LOADER, path: loader }]
  })
}

function nameOf(files: readonly ToolFile[]): string {
  const hash = createHash('sha256')
  for (const { name, content, mode } of files.toSorted((a, b) => (a.name < b.name ? -1 : 1))) {
    hash.update(`${name} ${String(mode)} ${String(content.length)}\n`).update(content)
  }
  return hash.digest('hex').slice(0, 16)
}

async function put(path: string, content: Buffer, mode: number): Promise<void> {
  await mkdir(dirname(path), { recursive: true })
  // Flushed to the disk, because a folder with a toolbox's final name must be complete, even after a power failure.
  await writeFile(path, content, { flush: true })
  await chmod(path, mode)
}

function foldersOf(files: readonly ToolFile[]): ReadonlySet<string> {
  const above = (name: string): readonly string[] => (name === '.' ? ['.'] : [name, ...above(dirname(name))])
  return new Set(files.flatMap(({ name }) => above(dirname(name))))
}
