import { constants, type Http2Stream } from 'node:http2'

/**
 * Sends fields that the other side sent. Node receives some that it throws on when it sends them, such as `http2-settings` or a status of
 * 999. In the listener of an event, the exception would end the process, so it ends the stream here.
 */
export function sendFields(stream: Http2Stream, send: () => void): void {
  if (stream.destroyed) return
  try {
    send()
  } catch {
    if (!stream.closed) stream.close(constants.NGHTTP2_INTERNAL_ERROR)
  }
}
