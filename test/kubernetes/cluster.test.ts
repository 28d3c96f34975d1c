import assert from 'node:assert/strict'
import { suite, test } from 'node:test'
import { applyObject, kubectl, whyNoKubernetes } from '../support/kubernetes.ts'

// The cluster of `npm run test:kubernetes` itself.

const POD = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'own-users' },
  spec: {
    hostUsers: false,
    restartPolicy: 'Never',
    containers: [{ name: 'box', image: 'localhost/box:1', command: ['cat', '/proc/self/uid_map'] }],
  },
}

suite('the cluster', { skip: whyNoKubernetes(), timeout: 120_000 }, () => {
  test('a Pod runs with users of its own', async () => {
    await applyObject(POD)
    await kubectl('wait', 'pod/own-users', '--for=jsonpath={.status.phase}=Succeeded', '--timeout=60s')
    const [inside, outside] = (await kubectl('logs', 'own-users')).trim().split(/\s+/)
    assert.equal(inside, '0')
    assert.notEqual(outside, '0', 'root of the Pod is another user of the node')
    await kubectl('delete', 'pod', 'own-users', '--grace-period=1')
  })

  test('the API server takes privileged Pods, which workers are', async () => {
    const container = { name: 'box', image: 'localhost/box:1', securityContext: { privileged: true } }
    const pod = { ...POD, metadata: { name: 'privileged' }, spec: { containers: [container] } }
    await applyObject(pod, '--dry-run=server')
  })
})
