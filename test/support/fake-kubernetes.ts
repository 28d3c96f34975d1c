import { readFileSync } from 'node:fs'
import { createServer, type Server } from 'node:https'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { text } from 'node:stream/consumers'
import { WebSocketServer, type WebSocket } from 'ws'
import type { ClusterAccess } from '../../src/worker/kubernetes/cluster-access.ts'
import { makeCertificate } from './certificates.ts'
import { makeFakeClaims, type FakeClaims } from './fake-claims.ts'
import {
  isAdmitted,
  isCanary,
  listPolicies,
  makeFakeNetwork,
  runCanaryPod,
  tryConnection,
  type FakeNetwork,
} from './fake-network.ts'

/** A Pod of the fake: what its creator wrote, and a status. */
export type FakePod = {
  metadata: {
    name: string
    namespace: string
    uid: string
    resourceVersion: string
    deletionTimestamp?: string
    labels?: Record<string, string>
  }
  spec: Record<string, unknown>
  status: Record<string, unknown>
}

/** An object that the fake only stores. */
export type FakeObject = {
  metadata: { name: string; labels?: Record<string, string>; ownerReferences?: readonly { readonly uid: string }[] }
  [field: string]: unknown
}

/** What the fake's kubelet does: runs Pods, commands in them, and their logs. */
export type FakeKubelet = {
  /** Called once the Pod is stored. */
  run(pod: FakePod, cluster: FakeCluster): void
  /** Ends a Pod; the fake removes the object when this resolves. */
  end(pod: FakePod, graceSecs: number): Promise<void>
  exec(pod: FakePod, command: readonly string[], socket: WebSocket): void
  log(pod: FakePod, query: URLSearchParams, reply: ServerResponse): void
  /** Kills everything that still runs. */
  close(): void
}

/** The faults that a test injects. */
export type FakeFaults = {
  /** Statuses to answer the next requests with, before anything is done: `POST 500`, `GET 429`. */
  readonly refuse: { method: string; status: number }[]
  /** How many of the next creates are done, and their answers cut. */
  loseCreates: number
  /** How many of the next writes to Pods are done, and their answers cut. */
  loseUpdates: number
  /** The resources that the worker has no right to, in the cluster. */
  readonly denied: Set<string>
  /** The verbs that it has on nothing. */
  readonly deniedVerbs: Set<string>
  /** While true, Pods that are deleted stay, as with a frozen kubelet. */
  isFrozen: boolean
}

/**
 * A small API server in this process: Pods with versions, watches and preconditions, and other objects, which it only stores. Namespaces that
 * nobody created don't exist, except `sandboxes`.
 */
export type FakeCluster = {
  readonly access: ClusterAccess
  readonly faults: FakeFaults
  readonly pods: ReadonlyMap<string, FakePod>
  /** What GET of a path answers, instead of what the fake has there. A number is the status of a refusal. */
  readonly answers: Map<string, object | number>
  readonly claims: FakeClaims
  readonly network: FakeNetwork
  /** All other objects by their paths. */
  readonly objects: Map<string, FakeObject>
  /** Counts the requests by method and kind of path, such as `POST pods`. */
  readonly requests: Map<string, number>
  /** Changes a Pod's status as the kubelet would. Does nothing to a Pod that is gone. */
  setStatus(name: string, status: Record<string, unknown>): void
  /** Removes a Pod without its kubelet. */
  drop(name: string): void
  /** Cuts all connections. With `forgets`, versions from before can no longer be watched (410). */
  cut(options?: { readonly forgets?: boolean }): void
  close(): Promise<void>
}

/** The only node of the fake. */
const NODE = { status: { allocatable: { cpu: '8', memory: '16Gi' } } }
const NAMESPACE = 'sandboxes'
const NAMESPACE_PATH = /^\/api\/v1\/namespaces\/[^/]+$/
/** The paths of Pods: of all, of a namespace, of one, and of what one has. */
const PODS = /^\/api\/v1(?:\/namespaces\/([^/]+))?\/pods(?:\/([^/]+)(?:\/(\w+))?)?$/

/** Starts the fake. `folder` gets the files of its certificate. */
export async function startFakeCluster(folder: string, kubelet: FakeKubelet): Promise<FakeCluster> {
  const { caFile, certFile, keyFile } = await makeCertificate(folder)
  const pods = new Map<string, FakePod>()
  const claims = makeFakeClaims(pods)
  const objects = new Map<string, FakeObject>()
  const requests = new Map<string, number>()
  const answers = new Map<string, object | number>()
  const faults: FakeFaults = {
    refuse: [],
    loseCreates: 0,
    loseUpdates: 0,
    denied: new Set(),
    deniedVerbs: new Set(),
    isFrozen: false,
  }
  const sockets = new Set<Socket>()
  const history: { version: number; type: string; object: FakePod }[] = []
  const watchers = new Set<(event: { type: string; object: FakePod }) => void>()
  let version = 100
  let oldest = 100
  let uids = 0

  const record = (type: string, pod: FakePod): void => {
    version += 1
    pod.metadata.resourceVersion = String(version)
    const event = { version, type, object: structuredClone(pod) }
    history.push(event)
    for (const send of watchers) send(event)
  }
  const remove = (pod: FakePod): void => {
    if (pods.get(pod.metadata.name) !== pod) return
    pods.delete(pod.metadata.name)
    for (const [path, { metadata }] of objects)
      if (metadata.ownerReferences?.some(({ uid }) => uid === pod.metadata.uid) === true) objects.delete(path)
    claims.sweep()
    record('DELETED', pod)
  }
  const cluster: FakeCluster = {
    access: {
      server: '',
      ca: readFileSync(caFile, 'utf8'),
      serverName: null,
      certificate: null,
      readToken: () => Promise.resolve('token-of-the-test'),
      namespace: NAMESPACE,
    },
    faults,
    pods,
    answers,
    claims,
    network: makeFakeNetwork(),
    objects,
    requests,
    setStatus(name, status) {
      const pod = pods.get(name)
      if (pod === undefined) return
      pod.status = { ...pod.status, ...status }
      record('MODIFIED', pod)
    },
    drop(name) {
      const pod = pods.get(name)
      if (pod !== undefined) remove(pod)
    },
    cut({ forgets = false } = {}) {
      if (forgets) oldest = version + 1
      for (const socket of sockets) socket.destroy()
    },
    async close() {
      kubelet.close()
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }

  const refuse = (reply: ServerResponse, status: number, reason: string): void => {
    answer(reply, status, { kind: 'Status', status: 'Failure', reason, message: `${reason} by the fake`, code: status })
  }
  const watch = (namespace: string | undefined, query: URLSearchParams, reply: ServerResponse): void => {
    const from = Number(query.get('resourceVersion'))
    reply.writeHead(200, { 'content-type': 'application/json' })
    const send = ({ type, object }: { type: string; object: object }): void => {
      reply.write(`${JSON.stringify({ type, object })}\n`)
    }
    if (from < oldest) {
      send({ type: 'ERROR', object: { kind: 'Status', code: 410, reason: 'Expired', message: 'too old' } })
      reply.end()
      return
    }
    const matches = selectorOf(query, namespace)
    const sendMatching = (event: { type: string; object: FakePod }): void => {
      if (matches(event.object)) send(event)
    }
    for (const event of history) if (event.version > from) sendMatching(event)
    watchers.add(sendMatching)
    send({ type: 'BOOKMARK', object: { kind: 'Pod', metadata: { resourceVersion: String(version) } } })
    reply.once('close', () => watchers.delete(sendMatching))
  }
  const create = async (
    { namespace, isTried }: { namespace: string; isTried: boolean },
    request: IncomingMessage,
    reply: ServerResponse,
  ): Promise<void> => {
    const pod = JSON.parse(await text(request)) as FakePod
    if (namespace !== NAMESPACE && !objects.has(`/api/v1/namespaces/${namespace}`)) {
      refuse(reply, 404, 'NotFound')
      return
    }
    pod.metadata.namespace = namespace
    if (!isAdmitted(pod, cluster.network)) {
      refuse(reply, 403, 'Forbidden')
      return
    }
    if (isTried) {
      answer(reply, 201, pod)
      return
    }
    if (pods.has(pod.metadata.name)) {
      refuse(reply, 409, 'AlreadyExists')
      return
    }
    uids += 1
    pod.metadata.uid = `uid-${String(uids)}`
    pod.status = { phase: 'Pending' }
    pods.set(pod.metadata.name, pod)
    record('ADDED', pod)
    if (isCanary(pod)) runCanaryPod(pod, cluster)
    else kubelet.run(pod, cluster)
    if (faults.loseCreates > 0) {
      faults.loseCreates -= 1
      reply.destroy()
    } else answer(reply, 201, pod)
  }
  /** Replaces the labels of a Pod, if nobody has changed it since it was read. */
  const update = async (name: string, request: IncomingMessage, reply: ServerResponse): Promise<void> => {
    const next = JSON.parse(await text(request)) as FakePod
    const pod = pods.get(name)
    const { uid, resourceVersion, labels } = next.metadata
    if (pod === undefined) refuse(reply, 404, 'NotFound')
    else if (pod.metadata.uid !== uid || pod.metadata.resourceVersion !== resourceVersion)
      refuse(reply, 409, 'Conflict')
    else {
      pod.metadata.labels = { ...labels }
      record('MODIFIED', pod)
      if (faults.loseUpdates > 0) {
        faults.loseUpdates -= 1
        reply.destroy()
      } else answer(reply, 200, pod)
    }
  }
  const deletePod = async (name: string, request: IncomingMessage, reply: ServerResponse): Promise<void> => {
    const options = JSON.parse(await text(request)) as { gracePeriodSeconds: number; preconditions?: { uid: string } }
    const pod = pods.get(name)
    if (pod === undefined) refuse(reply, 404, 'NotFound')
    else if (options.preconditions?.uid !== pod.metadata.uid) refuse(reply, 409, 'Conflict')
    else {
      const isFirst = pod.metadata.deletionTimestamp === undefined
      pod.metadata.deletionTimestamp = '2026-01-01T00:00:00Z'
      record('MODIFIED', pod)
      answer(reply, 200, pod)
      if (options.gracePeriodSeconds === 0) remove(pod)
      else if (isFirst && !faults.isFrozen)
        void kubelet.end(pod, options.gracePeriodSeconds).then(() => {
          remove(pod)
        })
    }
  }
  /** Creates, applies, reads or deletes an object that is no Pod. Lists are empty, but for those of policies. */
  const store = async (
    { pathname: path, searchParams }: URL,
    request: IncomingMessage,
    reply: ServerResponse,
  ): Promise<void> => {
    const body = await text(request)
    const given = body === '' ? null : (JSON.parse(body) as FakeObject)
    const ofClaims = claims.answer({ method: request.method ?? '', path, query: searchParams, body: given })
    if (ofClaims !== null) {
      if (faults.denied.has('persistentvolumeclaims')) refuse(reply, 403, 'Forbidden')
      else answer(reply, ...ofClaims)
      return
    }
    if (path.endsWith('/selfsubjectaccessreviews')) {
      const { spec } = given as unknown as { spec: { resourceAttributes: { resource: string; verb: string } } }
      const { resource, verb } = spec.resourceAttributes
      answer(reply, 201, { status: { allowed: !faults.denied.has(resource) && !faults.deniedVerbs.has(verb) } })
      return
    }
    if (path.endsWith('/selfsubjectreviews')) {
      answer(reply, 201, { status: { userInfo: { username: 'the-worker' } } })
      return
    }
    const { method } = request
    const at = method === 'POST' ? `${path}/${given?.metadata.name ?? ''}` : path
    const known = objects.get(at)
    if (method === 'GET' && path.endsWith('/networkpolicies'))
      answer(reply, 200, { metadata: {}, items: listPolicies(objects, path, searchParams) })
    else if (method === 'GET' && known === undefined && NAMESPACE_PATH.test(path)) refuse(reply, 404, 'NotFound')
    else if (method === 'GET') answer(reply, 200, known ?? { metadata: {}, items: [] })
    else if (method === 'POST' && known !== undefined) refuse(reply, 409, 'AlreadyExists')
    else if (method === 'DELETE' && !isExpected(known, given)) refuse(reply, 409, 'Conflict')
    else if (method === 'DELETE') answer(reply, objects.delete(at) ? 200 : 404, {})
    else if (given !== null) {
      // An apply changes what it names. Merging the first two levels suffices here.
      const metadata = { ...known?.metadata, ...given.metadata }
      objects.set(at, method === 'PATCH' ? { ...known, ...given, metadata } : given)
      answer(reply, 201, given)
    }
  }
  const serve = async (request: IncomingMessage, reply: ServerResponse): Promise<void> => {
    const url = new URL(request.url ?? '/', 'https://fake')
    const { pathname, searchParams } = url
    const { method = '' } = request
    const [isOfPods, namespace, name, part] = PODS.exec(pathname) ?? []
    const of = searchParams.has('watch') ? 'watch' : name === undefined ? 'pods' : (part ?? 'pod')
    const kind = isOfPods === undefined ? 'object' : of
    requests.set(`${method} ${kind}`, (requests.get(`${method} ${kind}`) ?? 0) + 1)
    const fault = faults.refuse.findIndex((one) => one.method === method)
    if (fault !== -1) {
      refuse(reply, faults.refuse.splice(fault, 1)[0]?.status ?? 500, 'Injected')
      return
    }
    const given = method === 'GET' ? answers.get(pathname) : undefined
    if (typeof given === 'number') refuse(reply, given, 'Injected')
    else if (given !== undefined) answer(reply, 200, given)
    else if (request.headers.authorization !== 'Bearer token-of-the-test') refuse(reply, 401, 'Unauthorized')
    else if (pathname === '/api/v1/nodes') answer(reply, 200, { metadata: {}, items: [NODE] })
    else if (kind === 'object') await store(url, request, reply)
    else if (kind === 'watch') watch(namespace, searchParams, reply)
    else if (method === 'POST')
      await create({ namespace: namespace ?? '', isTried: searchParams.has('dryRun') }, request, reply)
    else if (method === 'PUT') await update(name ?? '', request, reply)
    else if (method === 'DELETE') await deletePod(name ?? '', request, reply)
    else if (name === undefined)
      answer(reply, 200, {
        metadata: { resourceVersion: String(version) },
        items: [...pods.values()].filter(selectorOf(searchParams, namespace)),
      })
    else {
      const pod = pods.get(name)
      if (pod === undefined || pod.metadata.namespace !== namespace) refuse(reply, 404, 'NotFound')
      else if (kind === 'log') kubelet.log(pod, searchParams, reply)
      else answer(reply, 200, pod)
    }
  }

  const server: Server = createServer(
    { cert: readFileSync(certFile), key: readFileSync(keyFile) },
    (request, reply) => {
      serve(request, reply).catch(() => reply.destroy())
    },
  )
  server.on('secureConnection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  const upgrades = new WebSocketServer({ noServer: true, handleProtocols: () => 'v5.channel.k8s.io' })
  server.on('upgrade', (request, socket, head) => {
    const { pathname, searchParams } = new URL(request.url ?? '/', 'https://fake')
    const pod = pods.get(PODS.exec(pathname)?.[2] ?? '')
    requests.set('GET exec', (requests.get('GET exec') ?? 0) + 1)
    if (pod?.status['phase'] !== 'Running') {
      const body = JSON.stringify({ reason: 'NotFound', message: 'no such container' })
      socket.end(`HTTP/1.1 404 Not Found\r\ncontent-length: ${String(body.length)}\r\n\r\n${body}`)
      return
    }
    upgrades.handleUpgrade(request, socket, head, (accepted) => {
      if (isCanary(pod)) tryConnection(pod, cluster, { command: searchParams.getAll('command'), socket: accepted })
      else kubelet.exec(pod, searchParams.getAll('command'), accepted)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return Object.assign(cluster, { access: { ...cluster.access, server: `https://localhost:${String(port)}` } })
}

/** The Pods of a namespace, or of all, that a label selector of the form KEY=VALUE selects. */
function selectorOf(query: URLSearchParams, namespace: string | undefined): (pod: FakePod) => boolean {
  const [key = '', value = ''] = (query.get('labelSelector') ?? '').split('=')
  return ({ metadata }) =>
    metadata.labels?.[key] === value && (namespace === undefined || metadata.namespace === namespace)
}

/** Whether an object has the version that a deletion names, if it names one. */
function isExpected(known: FakeObject | undefined, options: object | null): boolean {
  const { preconditions } = (options ?? {}) as { preconditions?: { resourceVersion?: string } }
  const { resourceVersion } = (known?.metadata ?? {}) as { resourceVersion?: string }
  return preconditions?.resourceVersion === undefined || preconditions.resourceVersion === resourceVersion
}

function answer(reply: ServerResponse, status: number, body: object): void {
  reply.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}
