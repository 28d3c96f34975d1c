import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { makeApiClient, type ApiClient } from '../../../src/worker/kubernetes/api-client.ts'
import { isApiError } from '../../../src/worker/kubernetes/api-error.ts'
import { readClusterAccess } from '../../../src/worker/kubernetes/cluster-access.ts'
import { execInPod } from '../../../src/worker/kubernetes/exec-stream.ts'
import { watchObjects, type ApiObject, type ObjectWatch } from '../../../src/worker/kubernetes/object-watch.ts'
import { makeFakeKubelet } from '../../support/fake-kubelet.ts'
import { startFakeCluster, type FakeCluster } from '../../support/fake-kubernetes.ts'
import { waitUntil } from '../../support/wait.ts'

const NEVER = new AbortController().signal
let folder = ''
let cluster: FakeCluster
let client: ApiClient

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sandyard-kube-'))
  cluster = await startFakeCluster(folder, makeFakeKubelet(folder, folder))
  client = makeApiClient(cluster.access)
})
after(async () => {
  client.close()
  await cluster.close()
  await rm(folder, { recursive: true })
})

const pods = '/api/v1/namespaces/sandboxes/pods'

async function createPod(name: string, command: readonly string[] = ['sleep', '1000']): Promise<ApiObject> {
  const container = { name: 'sandbox', image: 'localhost/box:1', command }
  return await client.request('POST', pods, {
    metadata: { name, labels: { of: 'test' } },
    spec: { containers: [container] },
  })
}

async function deletePod({ metadata: { name, uid } }: ApiObject): Promise<void> {
  await client.request('DELETE', `${pods}/${name}`, { gracePeriodSeconds: 1, preconditions: { uid } })
}

async function createRunning(name: string): Promise<ApiObject> {
  const pod = await createPod(name)
  await waitUntil(() => cluster.pods.get(name)?.status['phase'] === 'Running')
  return pod
}

function watchAll(): { readonly watch: ObjectWatch<ApiObject>; readonly gone: string[] } {
  const gone: string[] = []
  const watch = watchObjects<ApiObject>({
    client,
    path: pods,
    labelSelector: 'of=test',
    onChange: ({ was, is }) => {
      if (is === null && was !== null) gone.push(was.metadata.name)
    },
    clock: systemClock,
    log: makeLog('silent'),
  })
  return { watch, gone }
}

test('an answer other than success is an error with its status and reason', async () => {
  const pod = await createPod('twice')
  await assert.rejects(createPod('twice'), (error) => isApiError(error, 409) && error.reason === 'AlreadyExists')
  const other = { metadata: { ...pod.metadata, uid: 'another' } }
  await assert.rejects(deletePod(other), (error) => isApiError(error, 409) && error.reason === 'Conflict')
  await deletePod(pod)
  await assert.rejects(client.request('GET', `${pods}/absent`), (error) => isApiError(error, 404))
})

test('a request after a DELETE with a body is understood', async () => {
  for (const name of ['a', 'b', 'c']) await deletePod(await createPod(name))
})

test('a watch follows every change, through cut connections and forgotten versions', async () => {
  const kept = await createPod('kept')
  const { watch, gone } = watchAll()
  await watch.ready
  assert.equal(watch.get('kept')?.metadata.uid, kept.metadata.uid)
  for (const forgets of [false, true]) {
    const early = await createPod(`early-${String(forgets)}`)
    await waitUntil(() => watch.get(early.metadata.name))
    cluster.cut({ forgets })
    cluster.drop(early.metadata.name)
    const late = await createPod(`late-${String(forgets)}`)
    await waitUntil(() => watch.get(late.metadata.name))
    await waitUntil(() => watch.get(early.metadata.name) === undefined)
    await deletePod(late)
    await waitUntil(() => watch.get(late.metadata.name) === undefined)
  }
  assert.deepEqual(gone, ['early-false', 'late-false', 'early-true', 'late-true'])
  assert.equal(watch.all().length, 1)
  await watch.close()
  await deletePod(kept)
})

test('a watch goes on after refusals of the API server', async () => {
  const { watch } = watchAll()
  await watch.ready
  cluster.faults.refuse.push({ method: 'GET', status: 500 }, { method: 'GET', status: 429 })
  cluster.cut()
  const pod = await createPod('after')
  await waitUntil(() => watch.get('after'))
  await watch.close()
  await deletePod(pod)
})

test('a watch that may not list says so', async () => {
  cluster.faults.refuse.push({ method: 'GET', status: 403 })
  const { watch } = watchAll()
  await assert.rejects(watch.ready, (error) => isApiError(error, 403))
  await watch.close()
})

test('a command gets its input and returns its output and exit code', async () => {
  const pod = await createRunning('exec')
  const target = { namespace: 'sandboxes', pod: 'exec', container: 'sandbox' }
  const cat = await execInPod(client, { ...target, command: ['sh', '-c', 'cat; echo end; exit 3'] }, NEVER)
  cat.stream.end('one\n')
  assert.equal((await buffer(cat.stream)).toString(), 'one\nend\n')
  assert.deepEqual(await cat.ended, { kind: 'exited', code: 3 })
  const absent = await execInPod(client, { ...target, command: ['/no/such/program'] }, NEVER)
  absent.stream.resume()
  assert.equal((await absent.ended).kind, 'failed')
  await assert.rejects(execInPod(client, { ...target, pod: 'absent', command: ['true'] }, NEVER), (error) =>
    isApiError(error, 404),
  )
  await deletePod(pod)
})

test('a command that reads slowly stops its writer, and all bytes arrive', async () => {
  const pod = await createRunning('slow')
  const target = { namespace: 'sandboxes', pod: 'slow', container: 'sandbox' }
  const total = 24 * 1024 * 1024
  const { stream, ended } = await execInPod(client, { ...target, command: ['sh', '-c', 'cat'] }, NEVER)
  const piece = Buffer.alloc(256 * 1024, 'x')
  let waits = 0
  let received = 0
  stream.on('data', (data: Buffer) => {
    received += data.length
  })
  for (let sent = 0; sent < total; sent += piece.length)
    if (!stream.write(piece)) {
      waits += 1
      await once(stream, 'drain')
    }
  stream.end()
  assert.deepEqual(await ended, { kind: 'exited', code: 0 })
  if (!stream.readableEnded) await once(stream, 'end')
  assert.equal(received, total)
  assert.ok(waits > 0)
  await deletePod(pod)
})

test('a lost connection fails the stream and says nothing about the command', async () => {
  const pod = await createRunning('cut')
  const target = { namespace: 'sandboxes', pod: 'cut', container: 'sandbox', command: ['cat'] }
  const { stream, ended } = await execInPod(client, target, NEVER)
  const failed = once(stream, 'error')
  stream.resume()
  cluster.cut()
  await failed
  assert.equal((await ended).kind, 'failed')
  await deletePod(pod)
})

test('a kubeconfig in JSON says how to reach the cluster, and others are refused in words', async () => {
  const path = join(folder, 'kubeconfig')
  const env = { host: undefined, port: undefined }
  const config = {
    'current-context': 'x',
    contexts: [{ name: 'x', context: { cluster: 'c', user: 'u', namespace: 'boxes' } }],
    clusters: [{ name: 'c', cluster: { server: 'https://example.test:6443/' } }],
    users: [{ name: 'u', user: { token: 'abc' } }],
  }
  await writeFile(path, JSON.stringify(config))
  const access = await readClusterAccess({ kubeconfig: path, env })
  assert.equal(access.server, 'https://example.test:6443')
  assert.equal(access.namespace, 'boxes')
  assert.equal(await access.readToken?.(), 'abc')
  await writeFile(path, JSON.stringify({ ...config, users: [{ name: 'u', user: { exec: {} } }] }))
  await assert.rejects(readClusterAccess({ kubeconfig: path, env }), /signs in by 'exec'/)
  await writeFile(path, 'apiVersion: v1\nkind: Config\n')
  await assert.rejects(readClusterAccess({ kubeconfig: path, env }), /kubectl config view --raw/)
  await assert.rejects(readClusterAccess({ kubeconfig: null, env }), /no cluster/)
})
