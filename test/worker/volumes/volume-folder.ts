import { spawn } from 'node:child_process'
import { lstatSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { chmod, chown, mkdir, mkdtemp, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { tmpdir } from 'node:os'
import { Readable } from 'node:stream'
import { VolumeFileError, type VolumeFiles } from '../../../src/contract/volumes/volume-protocol.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import type { GuestProcess } from '../../../src/worker/channel/guest.ts'
import { makeClaimFiles } from '../../../src/worker/drivers/kubernetes/files/claim-files.ts'
import { makeVolumeFiles } from '../../../src/worker/volumes/volume-files.ts'

export const isRoot = process.getuid?.() === 0
/** The id of the sandboxes' user 0. Without root, it must be the current user, because only root can change owners. */
export const UID_SHIFT = isRoot ? 100_000 : (process.getuid?.() ?? 0)

/** A folder for a volume. A test may put files next to it, to check that no operation reaches them. */
export type VolumeFolder = AsyncDisposable & {
  readonly dir: string
  readonly root: string
  readonly files: VolumeFiles
  /** The user whose processes may change everything in it. */
  readonly user: { readonly uid?: number; readonly gid?: number }
}

export async function makeVolumeFolder(at = tmpdir()): Promise<VolumeFolder> {
  const dir = await mkdtemp(join(at, 'sandyard-volume-'))
  const root = join(dir, 'volume')
  await mkdir(root)
  return {
    dir,
    root,
    files: makeVolumeFiles({ root, uidShift: UID_SHIFT, random: systemRandom }),
    user: {},
    [Symbol.asyncDispose]: () => rm(dir, { recursive: true, force: true }),
  }
}

const SCRIPT = join(import.meta.dirname, '../../../src/worker/perl/guest/volume.pl')

/** The same for the operations as processes, as a Pod has them: they have no rights over the files of others. */
export async function makeServedFolder(at = tmpdir()): Promise<VolumeFolder> {
  const folder = await makeVolumeFolder(at)
  if (isRoot) {
    await chmod(folder.dir, 0o755)
    await chown(folder.root, UID_SHIFT, UID_SHIFT)
  }
  const user = isRoot ? { uid: UID_SHIFT, gid: UID_SHIFT } : {}
  const start = (operation: readonly string[]): Promise<GuestProcess> => {
    const child = spawn('perl', [SCRIPT, process.arch, ...operation], {
      cwd: '/',
      env: { ...process.env, SANDYARD_VOLUME: folder.root },
      ...user,
    })
    const exited = new Promise<number>((resolve) => {
      child.once('exit', (code) => {
        resolve(code ?? -1)
      })
    })
    child.stdin.on('error', () => undefined)
    const { pid = 0, stdin, stdout, stderr } = child
    return Promise.resolve({
      pid,
      stdin,
      stdout,
      stderr,
      exited,
      resize: () => undefined,
      signal: (signal) => void child.kill(signal),
    })
  }
  return { ...folder, user, files: makeClaimFiles({ start, random: systemRandom, uidShift: UID_SHIFT }) }
}

/** How files of volumes are served. `keepsOwners`: also those of files that belong to others. */
export const SERVED = [
  { how: 'in a folder', make: makeVolumeFolder, keepsOwners: isRoot },
  { how: 'in a Pod', make: makeServedFolder, keepsOwners: false },
] as const

export function contentFrom(text: string): Readable {
  return Readable.from([Buffer.from(text)], { objectMode: false })
}

export async function textOf(files: VolumeFiles, path: string): Promise<string> {
  const { sizeBytes, content } = await files.read(path)
  const chunks: Buffer[] = []
  const pieces: AsyncIterable<Buffer> = content
  for await (const piece of pieces) chunks.push(piece)
  const whole = Buffer.concat(chunks)
  if (whole.length !== sizeBytes) throw new Error(`${sizeBytes} bytes were announced, ${whole.length} arrived`)
  return whole.toString('utf8')
}

/**
 * A check for `assert.rejects`: the error must be a refusal with this code, and its message must contain no path of the
 * host.
 */
export function refusal(code: VolumeFileError['code']): (error: unknown) => boolean {
  return (error) => {
    if (!(error instanceof VolumeFileError)) throw error
    if (error.code !== code) throw new Error(`${error.code} (${error.message}) and not ${code}`)
    if (/\/proc|\/tmp|sandyard-volume-/.test(error.message))
      throw new Error(`the message contains a path of the host: ${error.message}`)
    return true
  }
}

/** The names of everything in a tree, sorted. Unlike Node's recursive listing, it follows no symlinks. */
export function namesBeneath(folder: string): readonly string[] {
  const below = (name: string): readonly string[] =>
    readdirSync(join(folder, name), { withFileTypes: true }).flatMap((entry) => {
      const path = join(name, entry.name)
      return entry.isDirectory() ? [path, ...below(path)] : [path]
    })
  return below('').toSorted()
}

/** Everything in a tree as one text: names, kinds, owners, permissions, modification times and contents. */
export function describeTree(folder: string): string {
  const lines = ['', ...namesBeneath(folder)].map((name) => {
    const path = join(folder, name)
    const stats = lstatSync(path)
    const said = stats.isFile() ? readFileSync(path, 'base64') : stats.isSymbolicLink() ? readlinkSync(path) : ''
    return [name, stats.mode, stats.uid, stats.gid, stats.nlink, stats.ctimeMs, stats.mtimeMs, said].join(' ')
  })
  return lines.join('\n')
}

/** The names of unfinished files in all folders of a volume. */
export function unfinishedIn(root: string): readonly string[] {
  return namesBeneath(root).filter((name) => name.includes('.sandyard-'))
}
