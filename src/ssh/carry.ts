import type { Duplex } from 'node:stream'
import type ssh2 from 'ssh2'
import { makeChannelWriter } from './channel-writer.ts'
import { pump } from './pump.ts'
import type { SshConnection } from './shared-connection.ts'

/**
 * Carries a connection of the sandbox over an SSH channel. Each direction ends by itself. Resolves once the stream is closed.
 * Never rejects.
 */
export async function carryStream(
  { connection, socket }: Pick<SshConnection, 'connection' | 'socket'>,
  stream: Duplex,
  channel: ssh2.ServerChannel,
): Promise<void> {
  const closed = new AbortController()
  channel.once('close', () => {
    closed.abort(new Error('closed'))
  })
  stream.once('close', () => {
    channel.close()
  })
  channel.on('error', () => {
    stream.destroy()
  })
  closed.signal.addEventListener('abort', () => stream.destroy(), { once: true })
  channel.pipe(stream)
  await pump(stream, makeChannelWriter(channel, { connection, socket, closed: closed.signal }).stdout, closed.signal)
  // `end` would close both directions of the library's channel.
  if (!closed.signal.aborted) channel.eof()
  if (!stream.closed) await new Promise((resolve) => stream.once('close', resolve))
}
