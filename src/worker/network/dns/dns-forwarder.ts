import { createSocket, type Socket as UdpSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import type { Log } from '../../../lib/log.ts'
import { makeFairSemaphore } from '../../../lib/turns/fair-semaphore.ts'
import { joinSignals } from '../../../lib/join-signals.ts'
import type { Random } from '../../../lib/random.ts'
import { makeDnsClients } from './dns-clients.ts'
import { isRebinding, RCODE, readQuery, rebuildQuery, emptyReply } from './dns-message.ts'
import { RESOLVERS_MAX, type ResolverSettings } from './sandbox-resolvers.ts'
import { queryResolver, frameTcpMessage, readTcpMessages, type Transport } from './dns-upstream.ts'

/**
 * The limits of queries that wait for an answer at a time. A sandbox with more has its further queries wait for its own.
 * While all sandboxes together reach their limit, each free place goes to the next sandbox in turn.
 */
const IN_FLIGHT = { permits: 512, permitsPerKey: 32, waitersPerKey: 64 } as const
const TCP_CLIENTS = { perSource: 16, inAll: 512 } as const
const TCP_IDLE_MS = 10_000
/**
 * The time limit for one resolver. After it, the forwarder asks the next resolver. Stub resolvers in sandboxes give up
 * after 5 s.
 */
const RESOLVER_TIMEOUT_MS = 2_000
/** The maximum number of attempts to find a port that is free for both UDP and TCP. */
const PORT_ATTEMPTS = 10
const DNS_PORT = 53

/** The types of records SVCB and HTTPS (RFC 9460). */
const SERVICE_TYPES: readonly number[] = [64, 65]

export type DnsForwarder = {
  readonly port: number
  /** Stops listening. Pending queries are not answered. */
  close(): Promise<void>
}

/** What the policies of sandboxes say of names, and learn about them. A sandbox is known by its address. */
export type QueriedNames = {
  /** Whether a sandbox may look a name up. */
  allows(sandbox: string, name: string): boolean
  /** Whether the names of a sandbox's connections are read. They must not be encrypted then. */
  reads(sandbox: string): boolean
  /** Learns an answer before the sandbox gets it. False if it could not be learnt, so that the sandbox must not get it. */
  learn(sandbox: string, name: string, answer: Buffer): Promise<boolean>
}

type DnsForwarderOptions = {
  readonly address: string
  readonly resolvers: readonly string[]
  readonly hasRebindProtection: boolean
  readonly names: QueriedNames
  /** The settings of a sandbox that has its own, or null. */
  readonly resolversOf: (sandbox: string) => ResolverSettings | null
  readonly random: Random
  readonly log: Log
}

/**
 * Starts a DNS server for UDP and TCP at an address. It asks the given resolvers in order. It listens on port 53 if
 * that port is free.
 *
 * Senders are told apart by their address. Slow answers and many queries of one delay no other.
 *
 * Sandboxes whose names are read get no SVCB and HTTPS records.
 *
 * It replies REFUSED to queries above its limits, and to queries whose answer contains a special address for a public
 * name (DNS rebinding). It replies NXDOMAIN to queries that the policy denies, and SERVFAIL if no resolver answers.
 */
export async function startDnsForwarder(options: DnsForwarderOptions): Promise<DnsForwarder> {
  const stopping = new AbortController()
  const inFlight = makeFairSemaphore(IN_FLIGHT)

  const defaults: ResolverSettings = {
    find: () =>
      Promise.resolve(options.resolvers.slice(0, RESOLVERS_MAX).map((address) => ({ address, port: DNS_PORT }))),
    timeoutMs: RESOLVER_TIMEOUT_MS,
    hasRebindProtection: options.hasRebindProtection,
  }

  async function answer(query: Buffer, transport: Transport, sender: string): Promise<Buffer | null> {
    if (query.length < 12) return null
    const question = readQuery(query)
    if (question === null) return emptyReply(query, RCODE.formatError)
    if (!options.names.allows(sender, question.name)) return emptyReply(query, RCODE.nameError)
    // These records tell clients how to encrypt names. Without them, clients send names in the clear, as without ECH.
    if (SERVICE_TYPES.includes(question.type) && options.names.reads(sender)) return emptyReply(query, RCODE.noError)
    const acquired = inFlight.acquire(sender)
    if (acquired === null) return emptyReply(query, RCODE.refused)
    const release = await acquired
    try {
      const settings = options.resolversOf(sender) ?? defaults
      const asked = { query: rebuildQuery(query, question), transport }
      const found = await queryResolversInOrder({ ...options, settings }, asked, stopping.signal)
      if (found === null) return emptyReply(query, RCODE.serverFailure)
      if (settings.hasRebindProtection && isRebinding(found)) return emptyReply(query, RCODE.refused)
      const isLearnt = await options.names.learn(sender, question.name, found)
      return isLearnt ? found : emptyReply(query, RCODE.serverFailure)
    } finally {
      release()
    }
  }

  const { udp, tcp, port } = await listen(options.address)
  const clients = makeDnsClients(TCP_CLIENTS)
  udp.on('message', (query, sender) => {
    void answer(query, 'udp', sender.address).then((reply) => {
      if (reply !== null && !stopping.signal.aborted) udp.send(reply, sender.port, sender.address)
    }, logFailure)
  })
  udp.on('error', logFailure)
  tcp.on('connection', (client) => {
    const sender = client.remoteAddress ?? ''
    clients.add(sender, client)
    client.setTimeout(TCP_IDLE_MS, () => client.destroy())
    serveClient(client, (query) => answer(query, 'tcp', sender)).catch(logFailure)
  })
  tcp.on('error', logFailure)

  function logFailure(error: unknown): void {
    options.log.debug({ error }, 'a DNS query was not answered')
  }

  return {
    port,
    close: async () => {
      stopping.abort(new Error('the DNS forwarder stops'))
      clients.close()
      const closed = Promise.all([once(udp, 'close'), once(tcp, 'close')])
      udp.close()
      tcp.close()
      await closed
    },
  }
}

async function serveClient(client: Socket, answer: (query: Buffer) => Promise<Buffer | null>): Promise<void> {
  try {
    for await (const query of readTcpMessages(client)) {
      const reply = await answer(query)
      if (reply === null || client.destroyed) break
      if (!client.write(frameTcpMessage(reply))) await once(client, 'drain')
    }
  } finally {
    client.destroy()
  }
}

async function queryResolversInOrder(
  { settings, random, log }: Pick<DnsForwarderOptions, 'random' | 'log'> & { readonly settings: ResolverSettings },
  question: { readonly query: Buffer; readonly transport: Transport },
  stopping: AbortSignal,
): Promise<Buffer | null> {
  for (const resolver of await settings.find(question.transport)) {
    if (stopping.aborted) return null
    using limit = joinSignals(AbortSignal.timeout(settings.timeoutMs), stopping)
    try {
      return await queryResolver({ ...question, resolver }, random, limit.signal)
    } catch (error) {
      log.debug({ error, resolver }, 'a resolver did not answer')
    }
  }
  return null
}

/**
 * Listens on one port for UDP and TCP. The port is 53, or any free port if a resolver of the host listens on port 53 of
 * all addresses.
 */
async function listen(
  address: string,
): Promise<{ readonly udp: UdpSocket; readonly tcp: Server; readonly port: number }> {
  let failure: unknown = null
  for (let attempt = 0; attempt < PORT_ATTEMPTS; attempt++) {
    const udp = createSocket('udp4')
    const tcp = createServer()
    try {
      udp.bind({ address, port: attempt === 0 ? DNS_PORT : 0, exclusive: true })
      await once(udp, 'listening')
      const port = udp.address().port
      tcp.listen({ host: address, port, exclusive: true })
      await once(tcp, 'listening')
      return { udp, tcp, port }
    } catch (error) {
      failure = error
      udp.close()
      tcp.close()
    }
  }
  throw new Error(`no port at ${address} is free for DNS`, { cause: failure })
}
