import assert from 'node:assert/strict'
import { PassThrough } from 'node:stream'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { asId, type OrgId } from '../../../../src/domain/ids.ts'
import type { GuestProcess } from '../../../../src/worker/channel/guest.ts'
import { makeOperationPermits, startOperation } from '../../../../src/worker/drivers/kubernetes/files/operations.ts'
import type { AgentLink } from '../../../../src/worker/drivers/kubernetes/link/agent-link.ts'
import { waitUntil } from '../../../support/wait.ts'

const NEVER = new AbortController().signal

test('an operation on files is over only when its output was read, not when its process has ended', async () => {
  const permits = makeOperationPermits()
  const stdout = new PassThrough()
  const process: GuestProcess = {
    pid: 1,
    stdin: new PassThrough(),
    stdout,
    stderr: null,
    exited: Promise.resolve(0),
    resize: () => undefined,
    signal: () => undefined,
  }
  const link: AgentLink = {
    start: () => Promise.resolve(process),
    setsLimits: true,
    isClosed: false,
    closed: new Promise(() => undefined),
    close: () => undefined,
  }
  let isOver = false
  const operation = {
    target: { namespace: 'sandboxes', name: 'files', org_id: asId<OrgId>('org') },
    permits,
    words: ['list', ''],
    signal: NEVER,
    onOver: () => {
      isOver = true
    },
  }
  const deps = { links: { of: () => Promise.resolve(link) }, tools: '/tools', ended: NEVER }
  const started = await startOperation(deps, operation)
  await started.exited
  await new Promise(setImmediate)
  assert.equal(isOver, false, 'its Pod may be deleted then, and with it the rest of the output')
  stdout.end('+result')
  assert.equal(await text(started.stdout), '+result')
  await waitUntil(() => isOver)
})
