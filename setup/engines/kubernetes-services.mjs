// What kube-proxy and a cluster's DNS do, for the cluster of the tests: this process runs in the cluster's network, listens on the
// address of each Service, and forwards TCP connections to a ready Pod of it. It answers `NAME.NAMESPACE.svc.cluster.local`.
// Arguments: a kubeconfig, and the address of the DNS server.
import { execFileSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { connect, createServer } from 'node:net'
import { keepUpdating, makeLists } from './cluster-lists.mjs'

const [kubeconfig, dnsAddress] = process.argv.slice(2)
const pollMs = 300
const list = makeLists(kubeconfig)

/** Addresses of Services by `NAME.NAMESPACE.svc.cluster.local`. */
let addresses = new Map()
/** Ready Pods, such as `10.244.0.10:8080`, by `ADDRESS:PORT` of their Service. */
let backends = new Map()
const servers = new Map()

addAddress(dnsAddress)
createSocket('udp4')
  .on('message', function (query, { address, port }) {
    this.send(answer(query), port, address)
  })
  .bind(53, dnsAddress)
await keepUpdating(update, pollMs)

async function update() {
  const services = (await list('/api/v1/services')).filter(
    ({ metadata, spec }) => metadata.name !== 'kubernetes' && spec.clusterIP !== 'None' && spec.clusterIP,
  )
  const slices = await list('/apis/discovery.k8s.io/v1/endpointslices')
  addresses = new Map(
    services.map(({ metadata, spec }) => [`${metadata.name}.${metadata.namespace}.svc.cluster.local`, spec.clusterIP]),
  )
  backends = new Map(
    services.flatMap(({ metadata, spec }) =>
      spec.ports.map((port) => {
        const own = slices.filter(
          (slice) =>
            slice.metadata.namespace === metadata.namespace &&
            slice.metadata.labels['kubernetes.io/service-name'] === metadata.name,
        )
        return [`${spec.clusterIP}:${port.port}`, own.flatMap((slice) => readyPods(slice, port.name))]
      }),
    ),
  )
  for (const key of backends.keys()) if (!servers.has(key)) servers.set(key, listen(key))
  for (const [key, server] of servers) {
    if (backends.has(key)) continue
    server.close()
    servers.delete(key)
  }
}

function readyPods({ endpoints, ports }, portName) {
  const port = (ports ?? []).find(({ name }) => (name ?? '') === (portName ?? ''))?.port
  if (port === undefined) return []
  const ready = (endpoints ?? []).filter(({ conditions }) => conditions.ready)
  return ready.flatMap((endpoint) => endpoint.addresses.map((address) => `${address}:${port}`))
}

function listen(key) {
  const [address, port] = key.split(':')
  addAddress(address)
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
    const candidates = backends.get(key) ?? []
    const chosen = candidates[Math.floor(Math.random() * candidates.length)]
    if (chosen === undefined) {
      client.resetAndDestroy()
      return
    }
    const [host, backendPort] = chosen.split(':')
    const backend = connect({ host, port: Number(backendPort), allowHalfOpen: true, noDelay: true })
    client.on('error', () => backend.destroy()).pipe(backend)
    backend.on('error', () => client.destroy()).pipe(client)
  })
  return server.on('error', (error) => console.error(error.message)).listen(Number(port), address)
}

function addAddress(address) {
  execFileSync('ip', ['address', 'replace', `${address}/32`, 'dev', 'lo'])
}

/** Answers one question of DNS (RFC 1035): an A record of a Service, nothing for its other types, else that there is no such name. */
function answer(query) {
  const labels = []
  let at = 12
  while (query[at] !== 0) {
    labels.push(query.toString('latin1', at + 1, at + 1 + query[at]))
    at += query[at] + 1
  }
  const question = query.subarray(12, at + 5)
  const address = addresses.get(labels.join('.').toLowerCase())
  const isA = query.readUInt16BE(at + 1) === 1
  const records = address !== undefined && isA ? [record(address)] : []
  const header = Buffer.alloc(12)
  query.copy(header, 0, 0, 2)
  header.writeUInt16BE(address === undefined ? 0x8583 : 0x8580, 2)
  header.writeUInt16BE(1, 4)
  header.writeUInt16BE(records.length, 6)
  return Buffer.concat([header, question, ...records])
}

/** An A record of the name in the question, valid for one second. */
function record(address) {
  return Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, ...address.split('.').map(Number)])
}
