import { FileFailure } from './guest-files.ts'
import type { GuestFiles } from './guest-files.ts'

/** A file or folder that a client opened: its process, its slot in that process, and the operations that it allows. */
export type OpenHandle = {
  readonly files: GuestFiles
  readonly slot: number
  readonly path: string
} & (
  | { readonly kind: 'file'; readonly canRead: boolean; readonly canWrite: boolean; readonly isAppending: boolean }
  | { readonly kind: 'folder' }
)
export type OpenFileHandle = Extract<OpenHandle, { kind: 'file' }>

/** The handles of one client. A handle whose process has ended is unknown. */
export type HandleTable = {
  /**
   * Reserves a handle for a file or folder that is being opened. Throws `FileFailure` when the client has as many
   * handles as it may.
   */
  reserve(what: string): { readonly slot: number; cancel(): void; fill(open: OpenHandle): number }
  /** Throws `FileFailure` for an unknown handle. */
  get(what: string, handle: number): OpenHandle
  file(what: string, handle: number): OpenFileHandle
  forget(handle: number): void
  /** Returns a new slot for an operation that needs no handle. */
  newSlot(): number
}

/** The maximum number of handles of one client, the same as in the microsandbox agent. */
const MAX_HANDLES = 1024

/** Makes an empty table. The first handle is 1. */
export function makeHandleTable(): HandleTable {
  const open = new Map<number, OpenHandle>()
  let opening = 0
  let lastHandle = 0
  let lastSlot = 0

  const get = (what: string, handle: number): OpenHandle => {
    const known = open.get(handle)
    if (known !== undefined && !known.files.hasEnded) return known
    open.delete(handle)
    throw new FileFailure(`${what}: invalid handle: ${String(handle)}`)
  }
  const newSlot = (): number => {
    lastSlot = (lastSlot + 1) % 0x1_0000_0000
    return lastSlot
  }
  return {
    reserve(what) {
      if (open.size + opening >= MAX_HANDLES) {
        throw new FileFailure(`${what}: Too many open files (os error 24): ${String(MAX_HANDLES)} handles are open`)
      }
      opening += 1
      return {
        slot: newSlot(),
        cancel() {
          opening -= 1
        },
        fill(opened) {
          opening -= 1
          lastHandle += 1
          open.set(lastHandle, opened)
          return lastHandle
        },
      }
    },
    get,
    file(what, handle) {
      const known = get(what, handle)
      if (known.kind === 'file') return known
      throw new FileFailure(`${what}: handle ${String(handle)} is a directory`)
    },
    forget(handle) {
      open.delete(handle)
    },
    newSlot,
  }
}
