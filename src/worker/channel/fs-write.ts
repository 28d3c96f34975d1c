import type { FsFlowControl } from './fs-flow.ts'
import type { OpenFileHandle } from './fs-handles.ts'
import { FileFailure, MAX_PIECE_BYTES } from './guest-files.ts'

/** A write that a client streams into a file. */
export type FileUpload = {
  /** Writes what came; nothing means the end. Does nothing after the end or a failure. */
  push(data: Buffer): void
  /** Ends it with an error, before all came. */
  fail(error: unknown): void
  /** The client is gone. */
  cancel(): void
  /** Resolves when all was written, or the client is gone. Rejects with `FileFailure`, before the end too. */
  readonly over: Promise<void>
}

/** Starts a write at an offset, or for a handle that appends at the end of the file. */
export function receiveFile(
  flow: FsFlowControl,
  file: OpenFileHandle,
  wanted: { readonly offset: number; readonly length: number | null },
): FileUpload {
  const { resolve, reject, promise: over } = Promise.withResolvers<undefined>()
  let written = 0
  let last: Promise<void> = Promise.resolve()
  let isOver = false

  const finish = (error: unknown): void => {
    isOver = true
    if (error === null) resolve(undefined)
    else reject(error)
  }
  const write = (data: Buffer): void => {
    const uncount = flow.trackInput(data.length)
    const offset = file.isAppending ? null : wanted.offset + written
    written += data.length
    last = file.files.write(file.slot, offset, data).catch(finish).finally(uncount)
  }
  const end = async (): Promise<void> => {
    isOver = true
    await last // answers come in order: the others are there too
    const { length } = wanted
    if (length === null || length === written) finish(null)
    else finish(new FileFailure(`write length mismatch: expected ${String(length)}, wrote ${String(written)}`))
  }
  return {
    push(data) {
      if (isOver) return
      if (data.length === 0) void end()
      for (let at = 0; at < data.length; at += MAX_PIECE_BYTES) write(data.subarray(at, at + MAX_PIECE_BYTES))
    },
    fail: finish,
    cancel() {
      finish(null)
    },
    over,
  }
}
