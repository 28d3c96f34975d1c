import { constants } from 'node:http2'

/** Whether the frame with these flags is the last of its direction. */
export function endsStream(flags: number): boolean {
  return (flags & constants.NGHTTP2_FLAG_END_STREAM) !== 0
}
