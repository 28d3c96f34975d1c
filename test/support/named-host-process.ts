/** A process inside a network namespace. Its parent sends requests over IPC to serve and to ask there. */
import { createSocket } from 'node:dgram'
import { Resolver } from 'node:dns/promises'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import {
  createServer as createHttpServer,
  request as httpRequest,
  type IncomingMessage,
  type ServerResponse,
} from 'node:http'
import { createServer as createHttpsServer, request as httpsRequest } from 'node:https'
import { connect, createServer, type Socket } from 'node:net'
import type { TLSSocket } from 'node:tls'
import { errorCodeOf } from '../../src/lib/error-code.ts'
import type { DnsEntry, Get, HostAsk, HostReply } from './named-world.ts'

const QUIET_MS = 400
const LIMIT_MS = 8_000
let names: Readonly<Record<string, DnsEntry>> = {}
const requests: string[] = []

const HANDLERS: { readonly [Kind in HostAsk['kind']]: (ask: Extract<HostAsk, { kind: Kind }>) => Promise<string> } = {
  async serveDns(ask) {
    names = ask.names
    const udp = createSocket('udp4')
    udp.on('message', (query, sender) => {
      udp.send(answerQuery(query), sender.port, sender.address)
    })
    udp.bind(53, ask.address)
    await once(udp, 'listening')
    return 'serving'
  },
  setNames(ask) {
    names = ask.names
    return Promise.resolve('set')
  },
  async serveWeb({ certFile, keyFile }) {
    const web = [80, 8080].map((port) => createHttpServer(answerRequest).listen(port, '0.0.0.0'))
    const tls = createHttpsServer({ cert: readFileSync(certFile), key: readFileSync(keyFile) }, answerRequest)
    await Promise.all([...web, tls.listen(443, '0.0.0.0')].map((server) => once(server, 'listening')))
    return 'serving'
  },
  async serveDatagrams({ address, port }) {
    const udp = createSocket('udp4', (message, sender) => {
      udp.send(message, sender.port, sender.address)
    })
    udp.bind(port, address)
    await once(udp, 'listening')
    return 'serving'
  },
  async serveBanner({ port }) {
    const server = createServer((client) => {
      client.on('error', () => client.destroy())
      client.write('the server speaks first\n')
    }).listen(port, '0.0.0.0')
    await once(server, 'listening')
    return 'serving'
  },
  async serveEcho({ port }) {
    const server = createServer({ allowHalfOpen: true }, (client) => {
      client.on('error', () => client.destroy())
      client.pipe(client)
    }).listen(port, '0.0.0.0')
    await once(server, 'listening')
    return 'serving'
  },
  async lookUp({ server, name }) {
    const resolver = new Resolver({ timeout: 1_500, tries: 1 })
    resolver.setServers([server])
    return (await resolver.resolve4(name)).join()
  },
  async lookUpService({ server, name }) {
    const udp = createSocket('udp4')
    try {
      const head = Buffer.from('123401000001000000000000', 'hex')
      udp.send(Buffer.concat([head, encodeName(name), Buffer.from([0, 65, 0, 1])]), 53, server)
      const [reply] = (await once(udp, 'message', { signal: AbortSignal.timeout(LIMIT_MS) })) as [Buffer]
      return `code ${String(reply.readUInt16BE(2) & 15)}, ${String(reply.readUInt16BE(6))} answers`
    } finally {
      udp.close()
    }
  },
  get,
  async datagram({ address, port }) {
    const udp = createSocket('udp4')
    try {
      udp.send('ping', port, address)
      await once(udp, 'message', { signal: AbortSignal.timeout(QUIET_MS) })
      return 'answered'
    } finally {
      udp.close()
    }
  },
  async readBanner({ address, port }) {
    const socket = connect({ host: address, port })
    try {
      const [data] = (await once(socket, 'data', { signal: AbortSignal.timeout(LIMIT_MS) })) as [Buffer]
      return data.toString().trim()
    } finally {
      socket.destroy()
    }
  },
  async write({ address, port, hex }) {
    const socket = connect({ host: address, port })
    const chunks: Buffer[] = []
    socket.on('data', (chunk: Buffer) => chunks.push(chunk))
    socket.setTimeout(QUIET_MS, () => socket.destroy())
    socket.write(Buffer.from(hex, 'hex'))
    await once(socket, 'close')
    return Buffer.concat(chunks).toString('hex')
  },
  takeRequests: () => Promise.resolve(requests.splice(0).join('\n')),
}

function answerRequest(request: IncomingMessage, response: ServerResponse): void {
  const chunks: Buffer[] = []
  request.on('data', (chunk: Buffer) => chunks.push(chunk))
  request.on('end', () => {
    const { servername = null } = request.socket as Partial<TLSSocket> & Socket
    const seen = {
      at: request.socket.localAddress,
      sni: servername === false ? null : servername,
      host: request.headers.host,
      target: `${request.method ?? ''} ${request.url ?? ''}`,
      headers: request.headers,
      body: Buffer.concat(chunks).toString(),
    }
    requests.push(JSON.stringify(seen))
    response.end(JSON.stringify(seen))
  })
}

async function get({ address, port, host, path = '/', tls, headers = {}, body, caFile }: Get): Promise<string> {
  const common = {
    host: address,
    port,
    path,
    headers: { host, ...headers },
    agent: false,
    timeout: LIMIT_MS,
    method: body === undefined ? 'GET' : 'POST',
  }
  const trust =
    caFile === undefined
      ? { rejectUnauthorized: false, checkServerIdentity: () => undefined }
      : { ca: readFileSync(caFile) }
  const request =
    tls === undefined
      ? httpRequest(common)
      : httpsRequest({
          ...common,
          ...trust,
          servername: tls ?? '',
        })
  request.on('timeout', () => request.destroy(Object.assign(new Error('timeout'), { code: 'timeout' })))
  request.end(body)
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  const text = Buffer.concat(await response.toArray()).toString()
  return `${String(response.statusCode)} ${text}`
}

/** Answers a query for IPv4 addresses from `names` (RFC 1035, 4.1). */
function answerQuery(query: Buffer): Buffer {
  const labels: string[] = []
  let at = 12
  for (let length = query[at] ?? 0; length > 0; length = query[at] ?? 0) {
    labels.push(query.toString('latin1', at + 1, at + 1 + length))
    at += 1 + length
  }
  const question = query.subarray(12, at + 5)
  const entry = names[labels.join('.').toLowerCase()]
  const isA = query.readUInt16BE(at + 1) === 1
  const head = Buffer.alloc(12)
  query.copy(head, 0, 0, 2)
  head.writeUInt16BE(entry === undefined ? 0x8183 : 0x8180, 2)
  head.writeUInt16BE(1, 4)
  const isService = query.readUInt16BE(at + 1) === 65
  const service = [record(Buffer.from([0xc0, 12]), 65, 60, Buffer.from([0, 1, 0]))]
  const records = entry === undefined ? [] : isA ? recordsOf(entry) : isService ? service : []
  head.writeUInt16BE(records.length, 6)
  return Buffer.concat([head, question, ...records])
}

function recordsOf({ addresses, ttlSecs = 60, alias }: DnsEntry): readonly Buffer[] {
  const encoded = alias === undefined ? null : encodeName(alias)
  const owner = encoded ?? Buffer.from([0xc0, 12])
  const cname = encoded === null ? [] : [record(Buffer.from([0xc0, 12]), 5, ttlSecs, encoded)]
  return [
    ...cname,
    ...addresses.map((address) => record(owner, 1, ttlSecs, Buffer.from(address.split('.').map(Number)))),
  ]
}

function record(owner: Buffer, type: number, ttlSecs: number, data: Buffer): Buffer {
  const fixed = Buffer.alloc(10)
  fixed.writeUInt16BE(type, 0)
  fixed.writeUInt16BE(1, 2)
  fixed.writeUInt32BE(ttlSecs, 4)
  fixed.writeUInt16BE(data.length, 8)
  return Buffer.concat([owner, fixed, data])
}

function encodeName(name: string): Buffer {
  return Buffer.concat([
    ...name.split('.').map((label) => Buffer.from([label.length, ...Buffer.from(label)])),
    Buffer.from([0]),
  ])
}

process.on('message', ({ id, ask }: { readonly id: number; readonly ask: HostAsk }) => {
  // each handler takes the requests of its own kind
  const handle = HANDLERS[ask.kind] as (ask: HostAsk) => Promise<string>
  const reply = (result: string): void => {
    process.send?.({ id, result } satisfies HostReply)
  }
  handle(ask).then(reply, (error: unknown) => {
    reply(errorCodeOf(error) ?? String(error))
  })
})
