/** What Node's writable streams and the tar library's own have in common. */
export type ByteSink = {
  readonly destroyed: boolean
  write(chunk: Buffer): boolean
  once(event: 'drain', listener: () => void): unknown
}

/** Writes and waits for room, so that no stage runs ahead of the next. Rejects with the signal's reason when it aborts. */
export async function writeWithBackpressure(to: ByteSink, chunk: Buffer, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted()
  if (to.write(chunk) || to.destroyed) return
  await new Promise<void>((resolve, reject) => {
    const onAbort = (): void => {
      reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'))
    }
    signal.addEventListener('abort', onAbort, { once: true })
    to.once('drain', () => {
      signal.removeEventListener('abort', onAbort)
      resolve()
    })
  })
}

/** A chunk of a stream whose type doesn't say what it gives. */
export function asBuffer(chunk: unknown): Buffer {
  if (Buffer.isBuffer(chunk)) return chunk
  throw new TypeError('a tar stream gave something that is no buffer')
}
