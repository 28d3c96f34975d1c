import type { GuestProcess } from './guest.ts'
import { FileFailure } from './guest-files.ts'

/**
 * A connection to a helper process in a sandbox, which replies to requests in order. The helper isn't trusted: if it
 * sends an unexpected reply, or one that is longer than the request allows, it is killed.
 */
type FilesConnection = {
  /** Sends a request with its fields. Rejects with `FileFailure` when the operation failed or the helper is gone. */
  request(operation: number, fields: readonly Buffer[], maxReplyBytes: number): Promise<Buffer>
  /** Whether the helper has ended. All its open files are then closed. */
  readonly hasEnded: boolean
  /** Ends the helper process and waits until it is reaped. Pending requests fail. May be repeated. */
  close(): Promise<void>
}

const SIGKILL = 9
/** The size of a reply's header: the length, the number of the request, and the status. */
const HEADER_BYTES = 9
const MAX_ERROR_BYTES = 4096

type PendingRequest = {
  readonly id: number
  readonly maxReplyBytes: number
  readonly resolve: (reply: Buffer) => void
  readonly reject: (failure: FileFailure) => void
}
type Reply = { readonly request: PendingRequest; readonly isGood: boolean; readonly body: Buffer; filled: number }

/** Connects to a process that runs `guest/files.pl`, which documents the message format. */
export function connectFilesHelper(process: GuestProcess): FilesConnection {
  const waiting: PendingRequest[] = []
  const head = Buffer.alloc(HEADER_BYTES)
  let headFilled = 0
  let reply: Reply | null = null
  let isLost = false
  let nextId = 0

  const fail = (why: string): void => {
    if (isLost) return
    isLost = true
    process.signal(SIGKILL)
    for (const stream of [process.stdin, process.stdout, process.stderr]) stream?.destroy()
    const all = reply === null ? waiting.splice(0) : [reply.request, ...waiting.splice(0)]
    reply = null
    for (const { reject } of all) reject(new FileFailure(`files: ${why}`))
  }

  /** Parses the header of a reply. Null when it violates the protocol. */
  const parseHead = (): Reply | null => {
    const bodyBytes = head.readUInt32BE(0) - (HEADER_BYTES - 4)
    const status = head.readUInt8(8)
    const request = waiting[0]
    if (request === undefined || head.readUInt32BE(4) !== request.id || status > 1 || bodyBytes < 0) return null
    if (bodyBytes > (status === 0 ? request.maxReplyBytes : MAX_ERROR_BYTES)) return null
    waiting.shift()
    return { request, isGood: status === 0, body: Buffer.allocUnsafe(bodyBytes), filled: 0 }
  }
  const onData = (piece: Buffer): void => {
    let at = 0
    for (;;) {
      if (reply === null) {
        const copied = piece.copy(head, headFilled, at)
        at += copied
        headFilled += copied
        if (headFilled < HEADER_BYTES) return
        headFilled = 0
        reply = parseHead()
        if (reply === null) {
          fail('the helper process in the sandbox broke its protocol')
          return
        }
      }
      const copied = piece.copy(reply.body, reply.filled, at)
      at += copied
      reply.filled += copied
      if (reply.filled < reply.body.length) return
      const { request, isGood, body } = reply
      reply = null
      if (isGood) request.resolve(body)
      else request.reject(new FileFailure(body.toString('utf8')))
    }
  }

  const end = (): void => {
    fail('the helper process in the sandbox has ended')
  }
  process.stdout.on('data', onData).on('end', end).on('close', end).on('error', end)
  process.stdin.on('error', end)
  process.stderr?.on('error', end).resume()
  const gone = process.exited.then(end)

  return {
    request(operation, fields, maxReplyBytes) {
      return new Promise((resolve, reject) => {
        if (isLost) {
          reject(new FileFailure('files: the helper process in the sandbox has ended'))
          return
        }
        const id = nextId
        nextId = (nextId + 1) % 0x1_0000_0000
        waiting.push({ id, maxReplyBytes, resolve, reject })
        const bytes = fields.reduce((sum, field) => sum + field.length, 5)
        const start = Buffer.allocUnsafe(HEADER_BYTES)
        start.writeUInt32BE(bytes, 0)
        start.writeUInt32BE(id, 4)
        start.writeUInt8(operation, 8)
        process.stdin.cork()
        for (const buffer of [start, ...fields]) process.stdin.write(buffer)
        process.stdin.uncork()
      })
    },
    get hasEnded() {
      return isLost
    },
    async close() {
      fail('the channel was closed')
      await gone
    },
  }
}
