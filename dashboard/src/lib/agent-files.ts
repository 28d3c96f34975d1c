import { asBytes, asList, asMap, asUnsigned64 } from '../../../src/channel/cbor.ts'
import type { Agent, Payload } from './agent.ts'

/** The files of a sandbox, over its command channel. Every operation rejects with the words of the agent. */

export type Entry = {
  readonly path: string
  readonly size: number
  readonly isFolder: boolean
  readonly mtime: number | null
}

const PIECE_BYTES = 512 * 1024
const FOLDER_ENTRIES = 512
const FOLDER_BIT = 0o040_000
const TYPE_BITS = 0o170_000

export async function listFolder(agent: Agent, path: string): Promise<Entry[]> {
  const handle = await open(agent, 'OpenDir', { path })
  const entries: Entry[] = []
  for (;;) {
    const { result } = await request(agent, 'ReadDir', { handle, limit: FOLDER_ENTRIES })
    const more = asList(asMap(result)['List'], entryOf)
    entries.push(...more)
    if (more.length === 0) break
  }
  await request(agent, 'CloseHandle', { handle })
  return entries.toSorted((a, b) => Number(b.isFolder) - Number(a.isFolder) || a.path.localeCompare(b.path))
}

/** Reads a file. `onProgress` gets the bytes so far. */
export async function readFile(
  agent: Agent,
  path: string,
  onProgress: (bytes: number) => void = () => undefined,
): Promise<Blob> {
  const options = {
    read: true,
    write: false,
    append: false,
    create: false,
    truncate: false,
    create_new: false,
    mode: null,
    user: null,
  }
  const handle = await open(agent, 'OpenFile', { path, options })
  const pieces: Uint8Array<ArrayBuffer>[] = []
  let offset = 0
  for (;;) {
    const { data } = await request(agent, 'Read', { handle, offset, len: PIECE_BYTES })
    if (data.length === 0) break
    pieces.push(data)
    offset += data.length
    onProgress(offset)
  }
  await request(agent, 'CloseHandle', { handle })
  return new Blob(pieces)
}

/** Writes a file, in place if it exists, so that it keeps its owner and mode. `onProgress` gets the bytes so far. */
export async function writeFile(
  agent: Agent,
  path: string,
  content: Blob,
  onProgress: (bytes: number) => void = () => undefined,
): Promise<void> {
  const options = {
    read: false,
    write: true,
    append: false,
    create: true,
    truncate: true,
    create_new: false,
    mode: null,
    user: null,
  }
  const handle = await open(agent, 'OpenFile', { path, options })
  for (let offset = 0; offset < content.size; offset += PIECE_BYTES) {
    const piece = new Uint8Array(await content.slice(offset, offset + PIECE_BYTES).arrayBuffer())
    await request(agent, 'Write', { handle, offset, len: piece.length }, piece)
    onProgress(offset + piece.length)
  }
  await request(agent, 'CloseHandle', { handle })
}

export const makeFolder = (agent: Agent, path: string): Promise<unknown> =>
  request(agent, 'Mkdir', { path, mode: null, user: null })

export const removePath = (agent: Agent, { path, isFolder }: Pick<Entry, 'path' | 'isFolder'>): Promise<unknown> =>
  isFolder ? request(agent, 'RemoveDir', { path, recursive: true }) : request(agent, 'Remove', { path })

async function open(agent: Agent, op: string, fields: Payload): Promise<number> {
  return asUnsigned64(asMap((await request(agent, op, fields)).result)['Handle'])
}

type Answer = { readonly result: unknown; readonly data: Uint8Array<ArrayBuffer> }

function request(agent: Agent, op: string, fields: Payload, upload: Uint8Array | null = null): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const pieces: Uint8Array[] = []
    const session = agent.start('core.fs.request', { op: { [op]: fields } }, ({ type, payload, isLast }) => {
      if (type === 'core.fs.data') pieces.push(asBytes(payload['data']))
      if (!isLast) return
      if (payload['ok'] === true) resolve({ result: payload['data'], data: join(pieces) })
      else reject(new Error(wordsOf(payload) ?? `${op} failed`))
    })
    if (upload === null) return
    session.send('core.fs.data', { data: upload })
    session.send('core.fs.data', { data: new Uint8Array() })
  })
}

function wordsOf({ error, message }: Payload): string | null {
  return typeof error === 'string' ? error : typeof message === 'string' ? message : null
}

function join(pieces: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0))
  let offset = 0
  for (const piece of pieces) {
    all.set(piece, offset)
    offset += piece.length
  }
  return all
}

function entryOf(value: unknown): Entry {
  const { path, size, mode, mtime } = asMap(value)
  return {
    path: String(path),
    size: asUnsigned64(size),
    isFolder: (Number(mode) & TYPE_BITS) === FOLDER_BIT,
    mtime: typeof mtime === 'number' ? mtime : null,
  }
}
