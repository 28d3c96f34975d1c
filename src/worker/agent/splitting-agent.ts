import { Agent } from 'node:http'
import { connect } from 'node:net'
import type { ReadBuffers } from '../../lib/streams/read-buffers.ts'
import { splitMessages } from '../../lib/streams/split-messages.ts'

/** The largest message, which is that of the `ws` library. The control plane sends far smaller ones. */
const LIMIT_BYTES = 100 * 1024 * 1024

/** Opens the connections of WebSockets without TLS. Their binary messages arrive in pieces, which may be given back to `buffers`. */
export function makeSplittingAgent(buffers: ReadBuffers): Agent {
  const createConnection: Agent['createConnection'] = ({ host, port, timeout }) => {
    const onread = buffers.onread((chunk) => socket.emit('data', chunk))
    const socket = connect({
      onread,
      host: host ?? '',
      port: Number(port ?? 80),
      ...(timeout === undefined ? {} : { timeout }),
    })
    return splitMessages(socket, { limitBytes: LIMIT_BYTES, startsWithReply: true, onBytes: buffers.hold })
  }
  return Object.assign(new Agent(), { createConnection })
}
