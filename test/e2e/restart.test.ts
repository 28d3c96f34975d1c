import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { call, mustCall } from '../support/api.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

describe('the label sandyard.restart', { skip: whyNoServer() }, () => {
  let server: RealServer
  before(async () => {
    server = await startServer()
  })
  after(() => server.close())

  const bodyOf = (value: string, more: object = {}) => {
    return {
      image: DEMO_IMAGE,
      resources: { vcpus: 1, memory_mib: 64 },
      labels: { 'sandyard.restart': value },
      ...more,
    }
  }

  test('restarts a workload that crashes, on the same disk, until a client stops it', async () => {
    // It crashes twice, and its third run stays.
    const script = 'echo run >> /root/runs; test $(wc -l < /root/runs) -ge 3 || exit 7; exec sleep 1000'
    const body = bodyOf('on-failure', { runtime: { cmd: ['sh', '-c', script] } })
    const { id } = await mustCall(server, 'create_sandbox', { query: { start: 'true' }, body })
    const params = { sandbox_id: id }
    const events = async () => (await mustCall(server, 'list_events', { query: { sandbox_id: id } })).data
    const restarts = async () => {
      const causes = (await events()).map(({ payload }) => JSON.stringify(payload))
      return causes.filter((text) => /"cause":"restart_policy".*"restart \d+ of at most 20 in a row"/.test(text)).length
    }
    await waitUntil(async () => (await restarts()) === 2)
    await waitUntil(async () => (await mustCall(server, 'get_sandbox', { params })).status === 'running')
    const crashes = (await events()).filter(({ event_type }) => event_type === 'sandbox_failed')
    assert.equal(crashes.length, 2)
    await mustCall(server, 'stop_sandbox', { params })
    await waitUntil(async () => (await mustCall(server, 'get_sandbox', { params })).status === 'stopped')
    const stopped = await mustCall(server, 'get_sandbox', { params })
    assert.equal(stopped.last_failure_message, 'the workload exited with code 7')
    assert.equal(await restarts(), 2)
  })

  test('is refused with another value, and for an ephemeral sandbox', async () => {
    for (const [body, told] of [
      [bodyOf('never'), /labels\.sandyard\.restart.*never.*on-failure, always/],
      [bodyOf('always', { lifecycle: { ephemeral: true } }), /labels\.sandyard\.restart.*ephemeral/],
    ] as const) {
      const answer = await call(server, 'create_sandbox', { body })
      assert.equal(answer.status, 400)
      assert.match(answer.text, told)
    }
  })
})
