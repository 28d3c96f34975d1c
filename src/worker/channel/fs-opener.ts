import type { Channel } from './channel.ts'
import { FileFailure } from './guest-files.ts'
import type { GuestFiles } from './guest-files.ts'

/** A client's process for files: none until it is needed, and a new one when it has ended. */
export type GuestFilesOpener = {
  /** Rejects with `FileFailure`; may be repeated. */
  open(): Promise<GuestFiles>
  /** The client is gone: ends the process; the channel waits for that. */
  close(): void
}

/** An opener that has started nothing. */
export function makeGuestFilesOpener(channel: Channel): GuestFilesOpener {
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
        // it could not be started, which its operations were told
      }
      channel.supervise(files.then((started) => started.close(), nothing))
    },
  }
}
