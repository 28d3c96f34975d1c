import { Agent } from 'node:http'
import { connect } from 'node:net'
import { splitMessages } from '../../lib/split-messages.ts'

/** The largest message, which is that of the `ws` library. The control plane sends far smaller ones. */
const LIMIT_BYTES = 100 * 1024 * 1024

/** Opens the connections of WebSockets without TLS. Their binary messages arrive in pieces. */
export function makeSplittingAgent(): Agent {
  const createConnection: Agent['createConnection'] = ({ host, port, timeout }) => {
    const socket = connect({
      host: host ?? '',
      port: Number(port ?? 80),
      ...(timeout === undefined ? {} : { timeout }),
    })
    return splitMessages(socket, { limitBytes: LIMIT_BYTES, startsWithReply: true })
  }
  return Object.assign(new Agent(), { createConnection })
}
