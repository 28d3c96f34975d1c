import { posix } from 'node:path'
import { toolCommand } from '../../../../contract/workers/guest-tools.ts'
import { VolumeFileError } from '../../../../contract/volumes/volume-protocol.ts'
import type { Patch, SandboxSpec } from '../../../../domain/spec/spec.ts'
import { awaitAnswer } from '../../../../lib/await-answer.ts'
import { makeFilesClient } from '../../../channel/files-client.ts'
import { FileFailure, MAX_PIECE_BYTES, type GuestFiles, type OpenOptions } from '../../../channel/guest-files.ts'
import { StartError } from '../../../start-error.ts'
import type { ClaimFiles } from '../claim.ts'
import type { AgentLink, AgentStart } from './agent-link.ts'

type PatchSource = Pick<ClaimFiles, 'stat' | 'listToCopy' | 'read'>

/** The sandbox of a run that starts, reached but not used yet. */
type StartingSandbox = {
  readonly link: AgentLink
  readonly run_id: string
  readonly spec: SandboxSpec
  /** The files of the organization's default volume, which copies are made of. Null: the run has none. */
  readonly source: PatchSource | null
  /** The folder of the toolbox in the sandbox. */
  readonly tools: string
}

/**
 * Applies the patches of a spec in its sandbox, in order, as the sandbox's user. Then lets the workload begin, which
 * waits for that. Does nothing without patches. Rejects with the signal's reason, and with `StartError` of reason
 * `patch`, whose message names the patch, its path and what that user may not do.
 */
export async function applyPodPatches(sandbox: StartingSandbox, signal: AbortSignal): Promise<void> {
  if (sandbox.spec.patches.length === 0) return
  await awaitAnswer<undefined>(signal, {
    ask: ({ resolve, reject }) => {
      applyAll(sandbox).then(() => {
        resolve(undefined)
      }, reject)
    },
    onAbort: () => {
      sandbox.link.close() // the sandbox may never answer
    },
  })
}

async function applyAll({ link, run_id, spec, source, tools }: StartingSandbox): Promise<void> {
  const plain = { env: ['LC_ALL=C'], hasOwnEnv: true, cwd: '/', user: null, tty: null, rlimits: [] } as const
  const start = (command: AgentStart['command']) => link.start({ ...plain, command })
  const files = makeFilesClient(await start(toolCommand('files.pl', [process.arch], tools)))
  try {
    for (const [index, patch] of spec.patches.entries())
      await apply(files, patch, source).catch((error: unknown) => {
        if (!(error instanceof FileFailure || error instanceof VolumeFileError)) throw error
        throw new StartError(
          'patch',
          `patch ${String(index)} (${patch.type}): ${error.message}: ${targetOf(patch)}`,
          error,
        )
      })
  } finally {
    await files.close()
  }
  if (spec.runtime.cmd === null) return
  const { stdin, stdout } = await start(toolCommand('workload.pl', ['--begin', run_id], tools))
  const answer = await stdout[Symbol.asyncIterator]().next()
  if (answer.done === true) throw new StartError('host', 'the workload did not begin after its patches')
  stdin.end() // from here on, the workload may end, and with it the sandbox and this connection
}

const SLOT = 1
const [S_IFMT, S_IFDIR] = [0o170000, 0o040000]
/** The sandbox's user must be able to fill a folder that it makes. */
const OWN_ACCESS = 0o700
const CREATE: OpenOptions = {
  read: false, write: true, append: false, create: false, truncate: false, createNew: true, mode: null, user: null,
} // prettier-ignore

async function apply(files: GuestFiles, patch: Patch, source: PatchSource | null): Promise<void> {
  switch (patch.type) {
    case 'text':
      return await putFile(files, patch, [Buffer.from(patch.content)])
    case 'file':
      return await putFile(files, patch, [Buffer.from(patch.content, 'base64')])
    case 'symlink':
      await files.makeFolder(posix.dirname(patch.link), null, null)
      return await replacing(files, { path: patch.link, replace: patch.replace }, () =>
        files.symlink(patch.target, patch.link, null),
      )
    case 'mkdir':
      return await files.makeFolder(patch.path, patch.mode, null)
    case 'append':
      await files.makeFolder(posix.dirname(patch.path), null, null)
      await files.openFile(SLOT, patch.path, { ...CREATE, append: true, create: true, createNew: false })
      return await writeAndClose(files, [Buffer.from(patch.content)])
    case 'remove':
      return await remove(files, patch.path)
    case 'copy_file':
      return await copyFile(files, patch, required(source))
    case 'copy_dir':
      if (!patch.replace && (await exists(files, patch.dst))) throw new FileFailure(`'${patch.dst}' exists`)
      return await copyFolder(files, { ...patch, depth: 0 }, required(source))
  }
}

function required(source: PatchSource | null): PatchSource {
  if (source === null) throw new FileFailure("the organization's default volume does not exist")
  return source
}

type FileCopy = Omit<Extract<Patch, { type: 'copy_file' }>, 'type'>

async function copyFile(files: GuestFiles, { src, dst, mode, replace }: FileCopy, source: PatchSource): Promise<void> {
  const found = await source.stat(src)
  if (found.kind !== 'file') throw new FileFailure(`'${src}' is not a file`)
  const { content } = await source.read(src)
  try {
    await putFile(files, { path: dst, mode: mode ?? found.mode & 0o777, replace }, content)
  } finally {
    content.destroy()
  }
}

/** The maximum depth of nested folders that `copy_dir` accepts, as on other workers. */
const MAX_DEPTH = 100

type FolderCopy = { readonly src: string; readonly dst: string; readonly depth: number }

/** Copies a folder. Symlinks stay symlinks, as on other workers. */
async function copyFolder(files: GuestFiles, { src, dst, depth }: FolderCopy, source: PatchSource): Promise<void> {
  if (depth > MAX_DEPTH) throw new FileFailure(`'${src}' is deeper than ${String(MAX_DEPTH)} folders`)
  const { mode, kind } = await source.stat(src)
  if (kind !== 'directory') throw new FileFailure(`'${src}' is not a folder`)
  await files.makeFolder(dst, (mode & 0o777) | OWN_ACCESS, null)
  const { files: entries, links } = await source.listToCopy(src)
  for (const [name, target] of links)
    await replacing(files, { path: posix.join(dst, name), replace: true }, () =>
      files.symlink(target, posix.join(dst, name), null),
    )
  for (const entry of entries) {
    const to = { src: entry.path, dst: posix.join(dst, posix.basename(entry.path)) }
    if (entry.kind === 'directory') await copyFolder(files, { ...to, depth: depth + 1 }, source)
    else await copyFile(files, { ...to, mode: null, replace: true }, source)
  }
}

type FilePatch = { readonly path: string; readonly mode: number | null; readonly replace: boolean }

async function putFile(files: GuestFiles, { path, mode, replace }: FilePatch, content: Content): Promise<void> {
  await files.makeFolder(posix.dirname(path), null, null)
  await replacing(files, { path, replace }, () => files.openFile(SLOT, path, CREATE))
  const unchanged = { size: null, uid: null, gid: null, atime: null, mtime: null }
  await files.setStatSlot(SLOT, { ...unchanged, mode: mode ?? 0o644 })
  await writeAndClose(files, content)
}

type Content = Iterable<Buffer> | AsyncIterable<Buffer>

async function writeAndClose(files: GuestFiles, content: Content): Promise<void> {
  for await (const chunk of content)
    for (let at = 0; at < chunk.length; at += MAX_PIECE_BYTES)
      await files.write(SLOT, null, chunk.subarray(at, at + MAX_PIECE_BYTES))
  await files.closeSlot(SLOT)
}

/** Creates something at a path, which fails if there is something already. With `replace`, removes that first, unless it is a folder. */
async function replacing(
  files: GuestFiles,
  { path, replace }: { readonly path: string; readonly replace: boolean },
  create: () => Promise<void>,
): Promise<void> {
  let kept: unknown = null
  if (replace)
    await files.remove(path).catch((error: unknown) => {
      kept = error // perhaps there is nothing
    })
  await create().catch((error: unknown) => {
    throw kept ?? error
  })
}

/** Removes a file or a folder. Succeeds if there is none. */
async function remove(files: GuestFiles, path: string): Promise<void> {
  if (!(await exists(files, path))) return
  const { mode } = await files.stat(path, { follow: false })
  if ((mode & S_IFMT) === S_IFDIR) await files.removeTree(SLOT, path)
  else await files.remove(path)
}

const ITEMS = 512

/** Looks for each name of a path in its folder, because only that tells a missing file from a hidden one. */
async function exists(files: GuestFiles, path: string): Promise<boolean> {
  let folder = '/'
  for (const name of path.split('/').filter((part) => part !== '' && part !== '.')) {
    await files.openFolder(SLOT, folder)
    let isThere = false
    for (let items = await files.readFolder(SLOT, ITEMS); items.length > 0; items = await files.readFolder(SLOT, ITEMS))
      isThere ||= items.some((item) => item.name === name)
    await files.closeSlot(SLOT)
    if (!isThere && name !== '..') return false
    folder = posix.join(folder, name)
  }
  return true
}

function targetOf(patch: Patch): string {
  return 'path' in patch ? patch.path : 'dst' in patch ? patch.dst : patch.link
}
