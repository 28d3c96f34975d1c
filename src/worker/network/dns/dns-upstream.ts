import { createSocket } from 'node:dgram'
import { connect, isIP, isIPv6 } from 'node:net'
import { once } from 'node:events'
import { readFileOrNull } from '../../../lib/files.ts'
import type { Random } from '../../../lib/random.ts'
import { answersQuery, withMessageId } from './dns-message.ts'

/** Where a resolver is asked. The address may have a zone id (`%eth0`). */
export type ResolverAddress = { readonly address: string; readonly port: number }

/** The size of the length field before a message over TCP (RFC 1035, 4.2.2). */
const TCP_LENGTH_BYTES = 2

/** The transport protocol of a query. If an answer over UDP is truncated, the client asks again over TCP. */
export type Transport = 'udp' | 'tcp'

/**
 * Sends a query to a resolver and returns the answer with the client's id. Rejects when `signal` aborts or the resolver
 * can't be reached.
 */
export async function queryResolver(
  question: { readonly query: Buffer; readonly transport: Transport; readonly resolver: ResolverAddress },
  random: Random,
  signal: AbortSignal,
): Promise<Buffer> {
  // each query has a new random id and port, so an attacker who spoofs an answer has to guess both
  const query = withMessageId(question.query, random.bytes(2).readUInt16BE())
  const ask = question.transport === 'udp' ? queryOverUdp : queryOverTcp
  return withMessageId(await ask(query, question.resolver, signal), question.query.readUInt16BE(0))
}

async function queryOverUdp(query: Buffer, resolver: ResolverAddress, signal: AbortSignal): Promise<Buffer> {
  const socket = createSocket(isIPv6(resolver.address) ? 'udp6' : 'udp4')
  try {
    socket.connect(resolver.port, resolver.address) // a connected socket: the kernel drops packets from others
    await once(socket, 'connect', { signal })
    const { promise, resolve, reject } = Promise.withResolvers<Buffer>()
    socket.on('message', (message) => {
      if (answersQuery(message, query)) resolve(message)
    })
    socket.on('error', reject)
    const onAbort = (): void => {
      reject(new Error(`no answer from ${resolver.address}`, { cause: signal.reason }))
    }
    signal.addEventListener('abort', onAbort, { once: true })
    socket.send(query)
    return await promise
  } finally {
    socket.close()
  }
}

async function queryOverTcp(query: Buffer, resolver: ResolverAddress, signal: AbortSignal): Promise<Buffer> {
  const socket = connect({ port: resolver.port, host: resolver.address, signal })
  try {
    socket.write(frameTcpMessage(query))
    for await (const message of readTcpMessages(socket)) if (answersQuery(message, query)) return message
    throw new Error(`${resolver.address} closed the connection without an answer`)
  } finally {
    socket.destroy()
  }
}

/** Encodes a message for TCP: its length, then the message. */
export function frameTcpMessage(message: Buffer): Buffer {
  const length = Buffer.alloc(TCP_LENGTH_BYTES)
  length.writeUInt16BE(message.length)
  return Buffer.concat([length, message])
}

/** Splits a TCP stream into messages. Keeps at most one message (64 KiB) and the last chunk in memory. */
export async function* readTcpMessages(stream: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let pending = Buffer.alloc(0)
  for await (const chunk of stream) {
    pending = Buffer.concat([pending, chunk])
    while (pending.length >= TCP_LENGTH_BYTES) {
      const end = TCP_LENGTH_BYTES + pending.readUInt16BE(0)
      if (pending.length < end) break
      yield pending.subarray(TCP_LENGTH_BYTES, end)
      pending = pending.subarray(end)
    }
  }
}

/** Parses the name servers in a resolv.conf, in order. Keeps a zone id (`%eth0`). */
export function parseResolvConf(text: string): readonly string[] {
  return text
    .split('\n')
    .map((line) => /^nameserver\s+(\S+)/.exec(line.trim())?.[1] ?? '')
    .filter((address) => isIP(address) !== 0)
}

/**
 * Reads the host's resolvers. Without the file, the resolver is the host itself (resolv.conf(5)). A resolver on the
 * host's loopback device works too, because the forwarder asks it from the host's namespace.
 */
export async function readHostResolvers(path = '/etc/resolv.conf'): Promise<readonly string[]> {
  const text = await readFileOrNull(path)
  return text === null ? ['127.0.0.1'] : parseResolvConf(text)
}
