import assert from 'node:assert/strict'
import { PassThrough } from 'node:stream'
import { test } from 'node:test'
import { makeRelay, TICKET_LIMIT, type Relay } from '../../src/relay/relay.ts'

const never = new AbortController().signal

type Asked = { readonly run: string }

function makeTestRelay(): { readonly relay: Relay<Asked, PassThrough>; readonly told: string[] } {
  const told: string[] = []
  let made = 0
  const relay = makeRelay<Asked, PassThrough>({
    newTicket: () => `ticket-${String(++made)}`,
    onTicket: (worker) => told.push(worker),
  })
  return { relay, told }
}

test('a ticket is shown to its worker, and connects one stream of that worker with the caller that waits', async () => {
  const { relay, told } = makeTestRelay()
  const opened = relay.open('w1', { run: 'run-1' }, never)
  assert.deepEqual(told, ['w1'])
  assert.deepEqual(relay.openTickets('w1'), [{ ticket: 'ticket-1', run: 'run-1' }])
  const stream = new PassThrough()
  assert.ok(relay.hasTicket('w1', 'ticket-1'))
  assert.ok(relay.accept('w1', 'ticket-1', stream))
  assert.equal(await opened, stream)
  assert.ok(!relay.hasTicket('w1', 'ticket-1'))
  assert.ok(!relay.accept('w1', 'ticket-1', new PassThrough()))
  assert.deepEqual(relay.openTickets('w1'), [])
  assert.equal(relay.openTicketCount, 0)
})

test('a standby connection is used at once, only once, and needs no ticket', async () => {
  const { relay, told } = makeTestRelay()
  const stream = new PassThrough()
  const asked: Asked[] = []
  relay.addStandby('w1', (wanted) => {
    asked.push(wanted)
    return Promise.resolve(stream)
  })
  assert.equal(relay.standbyCount, 1)
  assert.equal(await relay.open('w1', { run: 'run-1' }, never), stream)
  assert.deepEqual([asked, told, relay.standbyCount], [[{ run: 'run-1' }], [], 0])
  const second = relay.open('w1', { run: 'run-2' }, never)
  assert.deepEqual(told, ['w1'])
  relay.accept('w1', 'ticket-1', new PassThrough())
  await second
  assert.equal(asked.length, 1)
})

test('a standby connection that broke, was withdrawn or belongs to another worker is not used', async () => {
  const { relay } = makeTestRelay()
  const mistaken = (): Promise<PassThrough> => Promise.reject(new Error('this one must not be asked'))
  relay.addStandby('w2', mistaken)
  relay.addStandby('w1', mistaken)()
  relay.addStandby('w1', () => Promise.resolve(null))
  const stream = new PassThrough()
  relay.addStandby('w1', () => Promise.resolve(stream))
  assert.equal(await relay.open('w1', { run: 'run-1' }, never), stream)
  relay.addStandby('w1', () => Promise.resolve(null))
  const opened = relay.open('w1', { run: 'run-2' }, never)
  await new Promise(setImmediate)
  assert.ok(relay.accept('w1', 'ticket-1', stream))
  assert.equal(await opened, stream)
})

test('a ticket is of no use to another worker', async () => {
  const { relay } = makeTestRelay()
  const opened = relay.open('w1', { run: 'run-1' }, never)
  assert.deepEqual(relay.openTickets('w2'), [])
  assert.ok(!relay.hasTicket('w2', 'ticket-1'))
  assert.ok(!relay.accept('w2', 'ticket-1', new PassThrough()))
  const stream = new PassThrough()
  assert.ok(relay.accept('w1', 'ticket-1', stream))
  assert.equal(await opened, stream)
})

test('a ticket is shown again until it is used, for an answer may have been lost', async () => {
  const { relay } = makeTestRelay()
  const opened = relay.open('w1', { run: 'run-1' }, never)
  assert.deepEqual(relay.openTickets('w1'), relay.openTickets('w1'))
  assert.equal(relay.openTickets('w1').length, 1)
  relay.accept('w1', 'ticket-1', new PassThrough())
  await opened
})

test('when the client of a ticket disconnects, the ticket is withdrawn', async () => {
  const { relay } = makeTestRelay()
  const leaving = new AbortController()
  const opened = relay.open('w1', { run: 'run-1' }, leaving.signal)
  leaving.abort(new Error('gone'))
  await assert.rejects(opened, /gone/)
  assert.ok(!relay.accept('w1', 'ticket-1', new PassThrough()))
  assert.equal(relay.openTicketCount, 0)
  await assert.rejects(relay.open('w1', { run: 'run-1' }, leaving.signal), /gone/)
  assert.equal(relay.openTicketCount, 0)
})

test('a client that disconnects at the moment when the worker dials in is counted once', async () => {
  const { relay } = makeTestRelay()
  const leaving = new AbortController()
  const opened = relay.open('w1', { run: 'run-1' }, leaving.signal)
  const stream = new PassThrough()
  relay.accept('w1', 'ticket-1', stream)
  leaving.abort(new Error('gone'))
  assert.equal(await opened, stream)
  assert.equal(relay.openTicketCount, 0)
})

test('above the limit of tickets the result is null at once, and a freed ticket can be used', async () => {
  const { relay } = makeTestRelay()
  const leaving = new AbortController()
  const waiting = Array.from({ length: TICKET_LIMIT }, () => relay.open('w1', { run: 'run' }, leaving.signal))
  assert.equal(await relay.open('w1', { run: 'run' }, never), null)
  assert.equal(relay.openTicketCount, TICKET_LIMIT)
  leaving.abort(new Error('gone'))
  await Promise.allSettled(waiting)
  const opened = relay.open('w1', { run: 'run' }, never)
  const [ticket] = relay.openTickets('w1')
  assert.ok(ticket !== undefined && relay.accept('w1', ticket.ticket, new PassThrough()))
  assert.ok((await opened) !== null)
})
