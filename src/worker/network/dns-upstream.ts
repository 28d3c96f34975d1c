import { createSocket } from 'node:dgram'
import { connect, isIP, isIPv6 } from 'node:net'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import type { Random } from '../../lib/random.ts'
import { answersQuery, withMessageId } from './dns-message.ts'

const DNS_PORT = 53
/** RFC 1035, 4.2.2: the length that stands before a message over TCP has two bytes. */
const TCP_LENGTH_BYTES = 2

/** How a query travels; an answer that UDP cuts short makes the asker come again over TCP. */
export type Transport = 'udp' | 'tcp'

/** Asks a resolver and gives its answer with the asker's id. Rejects when `signal` ends the wait or the resolver refuses. */
export async function queryResolver(
  question: { readonly query: Buffer; readonly transport: Transport; readonly resolver: string },
  random: Random,
  signal: AbortSignal,
): Promise<Buffer> {
  // an id of our own and a fresh port for each query: an answer from the side has to guess both
  const query = withMessageId(question.query, random.bytes(2).readUInt16BE())
  const ask = question.transport === 'udp' ? queryOverUdp : queryOverTcp
  return withMessageId(await ask(query, question.resolver, signal), question.query.readUInt16BE(0))
}

async function queryOverUdp(query: Buffer, resolver: string, signal: AbortSignal): Promise<Buffer> {
  const socket = createSocket(isIPv6(resolver) ? 'udp6' : 'udp4')
  try {
    socket.connect(DNS_PORT, resolver) // connected: the kernel drops what others send
    await once(socket, 'connect', { signal })
    const { promise, resolve, reject } = Promise.withResolvers<Buffer>()
    socket.on('message', (message) => {
      if (answersQuery(message, query)) resolve(message)
    })
    socket.on('error', reject)
    const onAbort = (): void => {
      reject(new Error(`no answer from ${resolver}`, { cause: signal.reason }))
    }
    signal.addEventListener('abort', onAbort, { once: true })
    socket.send(query)
    return await promise
  } finally {
    socket.close()
  }
}

async function queryOverTcp(query: Buffer, resolver: string, signal: AbortSignal): Promise<Buffer> {
  const socket = connect({ port: DNS_PORT, host: resolver, signal })
  try {
    socket.write(frameTcpMessage(query))
    for await (const message of readTcpMessages(socket)) if (answersQuery(message, query)) return message
    throw new Error(`${resolver} closed the connection without an answer`)
  } finally {
    socket.destroy()
  }
}

/** A message as TCP carries it, its length before it. */
export function frameTcpMessage(message: Buffer): Buffer {
  const length = Buffer.alloc(TCP_LENGTH_BYTES)
  length.writeUInt16BE(message.length)
  return Buffer.concat([length, message])
}

/** The messages of a TCP stream; holds at most one of them (64 KiB) and the last chunk. */
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

/** The resolvers that a resolv.conf names, in order; a zone id (`%eth0`) is kept. */
export function parseResolvConf(text: string): readonly string[] {
  return text
    .split('\n')
    .map((line) => /^nameserver\s+(\S+)/.exec(line.trim())?.[1] ?? '')
    .filter((address) => isIP(address) !== 0)
}

/** The host's resolvers, from /etc/resolv.conf; what a resolver on the host's loopback gives out is fine too. */
export async function readHostResolvers(): Promise<readonly string[]> {
  return parseResolvConf(await readFile('/etc/resolv.conf', 'utf8'))
}
