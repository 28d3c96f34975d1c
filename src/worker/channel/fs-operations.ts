import type { FsFlowControl } from './fs-flow-control.ts'
import type { HandleTable, OpenHandle } from './fs-handles.ts'
import { entryPayload } from './fs-payloads.ts'
import type { FsOperation, FsResult } from './fs-payloads.ts'
import { FileFailure, MAX_ITEMS } from './guest-files.ts'
import type { GuestFiles, OpenOptions } from './guest-files.ts'

/** The parts of a client's connection that an operation may use. */
export type FsContext = {
  /**
   * Returns the client's process for files. Starts it when it is first needed, and again after it has ended. Rejects
   * with `FileFailure`.
   */
  readonly files: () => Promise<GuestFiles>
  readonly handles: HandleTable
  readonly flow: FsFlowControl
}

/** All operations except reads and writes, which are sessions because their data may exceed one message. */
type SingleReplyOperation = Exclude<FsOperation, { readonly op: 'Read' | 'Write' }>

/** Runs an operation and returns the data of its reply. Rejects with `FileFailure`. */
export async function runOperation(client: FsContext, operation: SingleReplyOperation): Promise<FsResult> {
  switch (operation.op) {
    case 'List':
      return { List: await listFolder(client, operation.path) }
    case 'OpenFile':
      return { Handle: await openFile(client, operation.path, operation.options) }
    case 'OpenDir':
      return { Handle: await openFolder(client, operation.path) }
    case 'ReadDir':
    case 'FStat':
    case 'FSetStat':
    case 'CloseHandle':
      return await withHandle(client.handles, operation)
    default:
      return await withPath(await client.files(), client.handles, operation)
  }
}

type HandleOperation = Extract<FsOperation, { readonly op: 'ReadDir' | 'FStat' | 'FSetStat' | 'CloseHandle' }>
type PathOperation = Exclude<SingleReplyOperation, HandleOperation | { readonly op: 'List' | 'OpenFile' | 'OpenDir' }>

async function withPath(files: GuestFiles, handles: HandleTable, operation: PathOperation): Promise<FsResult> {
  switch (operation.op) {
    case 'RealPath':
      return { Path: await files.realPath(operation.path) }
    case 'ReadLink':
      return { Path: await files.readLink(operation.path) }
    case 'Stat':
      return { Stat: entryPayload(operation.path, await files.stat(operation.path, { follow: operation.follow })) }
    case 'SetStat':
      await files.setStat(operation.path, operation.attrs, { follow: operation.follow })
      return null
    case 'Symlink':
      await files.symlink(operation.target, operation.path, operation.user)
      return null
    case 'Mkdir':
      await files.makeFolder(operation.path, operation.mode, operation.user)
      return null
    case 'Remove':
      await files.remove(operation.path)
      return null
    case 'RemoveDir':
      await (operation.recursive
        ? files.removeTree(handles.newSlot(), operation.path)
        : files.removeFolder(operation.path))
      return null
    case 'Copy':
      await files.copy(handles.newSlot(), operation.from, operation.to)
      return null
    case 'Rename':
      await files.rename(operation.from, operation.to)
      return null
  }
}

async function withHandle(handles: HandleTable, operation: HandleOperation): Promise<FsResult> {
  switch (operation.op) {
    case 'ReadDir': {
      const { files, slot, path, kind } = handles.get('readdir', operation.handle)
      if (kind === 'file') throw new FileFailure(`readdir: handle ${String(operation.handle)} is a file`)
      // `readFolder` may return fewer entries than the client asked for, at most `MAX_ITEMS`. That is allowed, because
      // only an empty list means the end. `MAX_ITEMS` entries fit into one frame even with the longest paths.
      const items = await files.readFolder(slot, Math.max(1, operation.limit ?? DEFAULT_LIMIT))
      return { List: items.map(({ name, stat }) => entryPayload(join(path, name), stat)) }
    }
    case 'FStat': {
      const { files, slot, path } = handles.get('fstat', operation.handle)
      return { Stat: entryPayload(path, await files.statSlot(slot)) }
    }
    case 'FSetStat': {
      const { files, slot } = handles.file('fsetstat', operation.handle)
      await files.setStatSlot(slot, operation.attrs)
      return null
    }
    case 'CloseHandle': {
      const { files, slot } = handles.get('close', operation.handle)
      handles.forget(operation.handle)
      await files.closeSlot(slot)
      return null
    }
  }
}

/** The number of entries that a `ReadDir` without a limit returns. */
const DEFAULT_LIMIT = 128

async function openFile(client: FsContext, path: string, options: OpenOptions): Promise<number> {
  return await openHandle(client, 'open', async (files, slot) => {
    await files.openFile(slot, path, options)
    const { read: canRead, append: isAppending } = options
    return { files, slot, path, kind: 'file', canRead, canWrite: options.write || isAppending, isAppending }
  })
}

async function openFolder(client: FsContext, path: string): Promise<number> {
  return await openHandle(client, 'opendir', async (files, slot) => {
    await files.openFolder(slot, path)
    return { files, slot, path, kind: 'folder' }
  })
}

async function openHandle(
  { files, handles }: FsContext,
  what: string,
  open: (files: GuestFiles, slot: number) => Promise<OpenHandle>,
): Promise<number> {
  const reservation = handles.reserve(what)
  try {
    return reservation.fill(await open(await files(), reservation.slot))
  } catch (error) {
    reservation.cancel()
    throw error
  }
}

/** The maximum size of a listing. With its envelope it fits into one frame of 4 MiB. */
const LIST_LIMIT_BYTES = 4 * 1024 * 1024 - 1024
/** The maximum size of an entry without its path: nine keys and the widest numbers. */
const ENTRY_BYTES = 120

/** Lists a whole folder. Symlinks are not followed. */
async function listFolder({ files, handles, flow }: FsContext, path: string): Promise<readonly FsResult[]> {
  const permit = await flow.acquire()
  const entries: FsResult[] = []
  if (permit === null) return entries
  try {
    const open = await files()
    const slot = handles.newSlot()
    await open.openFolder(slot, path)
    try {
      for (let bytes = 0; ;) {
        const items = await open.readFolder(slot, MAX_ITEMS)
        if (items.length === 0) return entries
        for (const { name, stat } of items) {
          const itemPath = join(path, name)
          bytes += ENTRY_BYTES + Buffer.byteLength(itemPath)
          entries.push(entryPayload(itemPath, stat))
        }
        if (bytes > LIST_LIMIT_BYTES) throw new FileFailure(TOO_MANY)
      }
    } finally {
      if (!open.hasEnded) await open.closeSlot(slot)
    }
  } finally {
    permit()
  }
}

const TOO_MANY = 'readdir: more names than fit one message: Value too large for defined data type (os error 75)'

function join(folder: string, name: string): string {
  return folder.endsWith('/') ? `${folder}${name}` : `${folder}/${name}`
}
