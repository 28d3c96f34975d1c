import { CborError } from '../../channel/cbor.ts'
import type { Channel, MessageHandlers } from './channel.ts'
import { decodeData } from '../../channel/envelope.ts'
import { makeFsFlowControl } from './fs-flow-control.ts'
import { makeHandleTable } from './fs-handles.ts'
import { type FsContext, runOperation } from './fs-operations.ts'
import { type FileRange, type FsResult, errorPayload, okPayload, readFsRequest } from './fs-payloads.ts'
import { type FileUpload, receiveFile, sendFile } from './fs-transfer.ts'
import { FileFailure, type GuestFiles } from './guest-files.ts'

type FsMessages = 'core.fs.request' | 'core.fs.data'

/**
 * Handles one client's file messages. One process in the sandbox runs all operations. It starts with the first message,
 * and again after it has ended. When it ends, all handles of the client become invalid.
 *
 * `core.fs.response` reports failures, because the client treats a `core.error` in a file session as a broken agent.
 * Data for an id without a write in progress is ignored, because the client may send it before it learns that a write
 * has failed.
 */
export function makeFsHandlers(channel: Channel): MessageHandlers<FsMessages> {
  const writes = new Map<number, FileUpload>()
  const flow = makeFsFlowControl(channel)
  const opener = makeGuestFilesOpener(channel)
  const client: FsContext = { files: () => opener.open(), handles: makeHandleTable(), flow }

  const respond = (id: number, payload: Readonly<Record<string, unknown>>): void => {
    channel.send(id, 'core.fs.response', payload)
  }
  const describeError = (error: unknown): string => {
    if (error instanceof FileFailure) return error.message
    if (error instanceof CborError) return `the request can't be read: ${error.message}`
    channel.log.error({ error }, 'a file operation failed unexpectedly')
    return 'the sandbox could not do the operation'
  }
  const serve = async (id: number, work: Promise<FsResult>): Promise<void> => {
    const answer = await work.then(okPayload, (error: unknown) => errorPayload(describeError(error)))
    // The client may reuse the id as soon as it has received the response.
    channel.releaseId(id)
    respond(id, answer)
  }
  /**
   * Runs a request. It must not wait before it registers a write, because the data of the write may follow in the same
   * piece of input.
   */
  const runRequest = async (id: number, payload: Uint8Array): Promise<FsResult> => {
    const operation = readFsRequest(payload)
    if (operation.op !== 'Read' && operation.op !== 'Write') return await runOperation(client, operation)
    await (operation.op === 'Read' ? read(id, operation) : write(id, operation))
    return null
  }
  const read = async (id: number, { handle, offset, length }: FileRange): Promise<void> => {
    const file = client.handles.file('read', handle)
    if (!file.canRead) throw new FileFailure(`read: handle ${String(handle)} is not open for reading`)
    await sendFile(flow, file, { id, offset, length })
  }
  const write = async (id: number, { handle, offset, length }: FileRange): Promise<void> => {
    const file = client.handles.file('write', handle)
    if (!file.canWrite) throw new FileFailure(`write: handle ${String(handle)} is not open for writing`)
    const session = receiveFile(flow, file, { offset, length })
    writes.set(id, session)
    await session.ended.finally(() => writes.delete(id))
  }

  return {
    handlers: {
      'core.fs.request': ({ id, payload }) => {
        const claim = channel.claimId(id)
        if (claim === 'claimed') channel.supervise(serve(id, runRequest(id, payload)))
        else respond(id, errorPayload(claim === 'live' ? 'this id has a session' : TOO_MANY))
      },
      'core.fs.data': ({ id, payload }) => {
        const session = writes.get(id)
        if (session === undefined) return
        try {
          session.push(decodeData(payload))
        } catch (error) {
          session.fail(error)
        }
      },
    },
    close() {
      flow.close()
      opener.close()
      for (const session of writes.values()) session.cancel()
    },
  }
}

const TOO_MANY = 'too many open sessions: Resource temporarily unavailable (os error 11)'

/** Starts a client's process for files when it is needed, and again after it has ended. */
type GuestFilesOpener = {
  /** Returns the running process, or starts one. Rejects with `FileFailure`. May be repeated. */
  open(): Promise<GuestFiles>
  /** Ends the process. Called when the client has disconnected. The channel waits for the end of the process. */
  close(): void
}

/** Creates an opener. It starts no process yet. */
function makeGuestFilesOpener(channel: Channel): GuestFilesOpener {
  let current: Promise<GuestFiles> | null = null
  let opened: GuestFiles | null = null
  let isClosed = false

  const start = async (): Promise<GuestFiles> => {
    try {
      opened = await channel.guest.openFiles()
      return opened
    } catch (error) {
      current = null
      throw error
    }
  }
  return {
    open() {
      if (isClosed) return Promise.reject(new FileFailure('files: the channel was closed'))
      if (opened?.hasEnded === true) {
        channel.supervise(opened.close())
        opened = null
        current = null
      }
      current ??= start()
      return current
    },
    close() {
      isClosed = true
      const files = current
      if (files === null) return
      const nothing = (): void => {
        // the process could not be started, and the operations have reported that
      }
      channel.supervise(files.then((started) => started.close(), nothing))
    },
  }
}
