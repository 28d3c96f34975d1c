import type { FsFlowControl, ReleasePermit } from './fs-flow-control.ts'
import type { OpenFileHandle } from './fs-handles.ts'
import { FileFailure, MAX_PIECE_BYTES } from './guest-files.ts'

/** The maximum size of one piece, the same as for the data of one frame. */
const PIECE_BYTES = 1024 * 1024
/**
 * How many pieces to request from the sandbox at a time. With two, the sandbox reads one piece while the other is sent
 * to the client.
 */
const AHEAD = 2

/** A requested part of a file. */
type Piece = {
  readonly offset: number
  readonly bytes: number
  readonly answer: Promise<{ readonly data: Buffer } | { readonly error: unknown }>
  readonly permit: ReleasePermit
}

/**
 * Sends a part of a file, or everything up to its end, at the client's pace. Rejects with `FileFailure`, possibly after
 * part of the data has been sent. Resolves early when the client has disconnected.
 */
export async function sendFile(
  flow: FsFlowControl,
  file: OpenFileHandle,
  wanted: { readonly id: number; readonly offset: number; readonly length: number | null },
): Promise<void> {
  const end = wanted.length === null ? Infinity : wanted.offset + wanted.length
  let at = wanted.offset
  let ahead = AHEAD
  let pending: Piece[] = []

  const request = (permit: ReleasePermit): void => {
    const bytes = Math.min(PIECE_BYTES, end - at)
    const answer = file.files.read(file.slot, at, bytes).then(
      (data) => ({ data }),
      (error: unknown) => ({ error }),
    )
    pending.push({ offset: at, bytes, answer, permit })
    at += bytes
  }
  const drop = async (): Promise<void> => {
    const dropped = pending
    pending = []
    for (const { answer, permit } of dropped) {
      await answer
      permit()
    }
  }

  try {
    for (;;) {
      while (at < end && pending.length < ahead) {
        const permit = pending.length === 0 ? await flow.acquire() : flow.tryAcquire()
        if (permit === null) break
        request(permit)
      }
      const [piece] = pending
      if (piece === undefined) return
      const answer = await piece.answer
      if ('error' in answer) throw answer.error
      const { data } = answer
      if (data.length === 0) return
      await flow.send(wanted.id, data)
      pending.shift()
      piece.permit()
      if (data.length === piece.bytes) continue
      // The reply has fewer bytes than requested, because the file ends there or is a device. The pieces after it,
      // which are already requested, would leave a gap. They are dropped and requested again from here.
      await drop()
      at = piece.offset + data.length
      ahead = 1
    }
  } finally {
    await drop()
  }
}

/** A write in progress: a client streams data into a file. */
export type FileUpload = {
  /** Writes data. Empty data means the end of the data. After the end or a failure, further data is ignored. */
  push(data: Buffer): void
  /** Fails the write before all data has arrived. */
  fail(error: unknown): void
  /** Abandons the write. Called when the client has disconnected. */
  cancel(): void
  /**
   * Resolves when all data is written, or when the client has disconnected. Rejects with `FileFailure`, possibly before
   * all data has arrived.
   */
  readonly ended: Promise<void>
}

/** Starts a write at an offset. For a handle in append mode, data goes to the end of the file. */
export function receiveFile(
  flow: FsFlowControl,
  file: OpenFileHandle,
  wanted: { readonly offset: number; readonly length: number | null },
): FileUpload {
  const { resolve, reject, promise: ended } = Promise.withResolvers<undefined>()
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
    await last // replies come in order, so all others have arrived too
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
    ended,
  }
}
