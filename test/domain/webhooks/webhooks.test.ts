import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { Webhook } from 'standardwebhooks'
import { judgeWebhook, parseNamedDestination } from '../../../src/domain/network/outbound-rule.ts'
import { judgeAttempt } from '../../../src/domain/webhooks/judge-attempt.ts'
import { formatWebhookSecret, signMessage } from '../../../src/domain/webhooks/message.ts'
import { RETRY_SCHEDULE, retryAfterMs, retryDelayMs } from '../../../src/domain/webhooks/retry-schedule.ts'
import { isWebhookUrl } from '../../../src/domain/webhooks/webhook-url.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { systemRandom } from '../../../src/lib/random.ts'

const HOUR_MS = 3_600_000

test('the official library verifies a signature by any of the secrets, and refuses another body, id or secret', () => {
  const [now, old, other] = [1, 2, 3].map(() => formatWebhookSecret(systemRandom.bytes(32)))
  assert.ok(now !== undefined && old !== undefined && other !== undefined)
  fc.assert(
    fc.property(fc.uuid(), fc.jsonValue(), (id, value) => {
      const body = JSON.stringify(value)
      const headers = { ...signMessage({ id, body, at: systemClock.now() }, [now, old]) }
      assert.deepEqual(new Webhook(now).verify(body, headers), JSON.parse(body))
      assert.deepEqual(new Webhook(old).verify(body, headers), JSON.parse(body))
      assert.throws(() => new Webhook(other).verify(body, headers))
      assert.throws(() => new Webhook(now).verify(`${body} `, headers))
      assert.throws(() => new Webhook(now).verify(body, { ...headers, 'webhook-id': `${id}x` }))
    }),
  )
})

test('a failed delivery is tried for three days, each pause about twice as long as the one before, up to four hours', () => {
  fc.assert(
    fc.property(fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { minLength: 200, maxLength: 200 }), (randoms) => {
      let triedMs = 0
      let attempts = 1
      for (const random of randoms) {
        const delayMs = retryDelayMs(RETRY_SCHEDULE, { triedMs, requestedMs: null }, random)
        if (delayMs === null) break
        assert.ok(delayMs >= 4_000 && delayMs <= 4.8 * HOUR_MS)
        if (triedMs > 5_000 && triedMs < 4 * HOUR_MS) assert.ok(delayMs >= triedMs * 0.79 && delayMs <= triedMs * 1.21)
        triedMs += delayMs
        attempts += 1
      }
      assert.ok(triedMs > 67 * HOUR_MS && triedMs <= 72 * HOUR_MS, String(triedMs))
      assert.ok(attempts > 20 && attempts < 50, String(attempts))
    }),
  )
})

test('only a 2xx delivers; 410 pauses at once, and the end of three days fails and pauses', () => {
  const tried_since = new Date('2026-11-24T00:00:00Z')
  const judge = (reply_status: number | null, afterMs: number) =>
    judgeAttempt(
      RETRY_SCHEDULE,
      { reply_status, retry_after_ms: null, tried_since, at: new Date(tried_since.getTime() + afterMs) },
      0.5,
    )
  for (const status of [200, 202, 299]) assert.equal(judge(status, 80 * HOUR_MS).status, 'delivered')
  for (const status of [null, 100, 199, 301, 307, 400, 404, 429, 500, 503]) {
    const verdict = judge(status, 0)
    assert.deepEqual(verdict, { status: 'waiting', next_attempt_at: new Date('2026-11-24T00:00:05Z'), pause: null })
    assert.deepEqual(judge(status, 71 * HOUR_MS), { status: 'failed', next_attempt_at: null, pause: 'failing' })
  }
  assert.deepEqual(judge(410, 0), { status: 'waiting', next_attempt_at: null, pause: 'gone' })
})

test('Retry-After delays the next attempt by at least that time, up to four hours, and shortens nothing', () => {
  const now = new Date('2026-11-24T00:00:00Z')
  const delayAfter = (header: string | null, triedMs = 0) =>
    retryDelayMs(RETRY_SCHEDULE, { triedMs, requestedMs: retryAfterMs(header, now) }, 0)
  assert.equal(delayAfter('120'), 120_000)
  assert.equal(delayAfter('Tue, 24 Nov 2026 00:02:00 GMT'), 120_000)
  assert.equal(delayAfter('999999'), 4 * HOUR_MS)
  assert.equal(delayAfter('120', 71.99 * HOUR_MS), null)
  for (const header of [null, '', '0', '-5', '1.5e9', 'soon', 'Mon, 23 Nov 2026 00:00:00 GMT'])
    assert.equal(delayAfter(header), delayAfter(null), String(header))
})

test('a webhook goes to public addresses by HTTPS, and elsewhere only where the operator named it', () => {
  const ruleOf = (...named: readonly string[]) => ({
    named: named.flatMap((text) => parseNamedDestination(text) ?? []),
    own: ['198.18.7.7', '8.8.4.4'],
  })
  const closed = ruleOf()
  for (const [url, address] of [
    ['http://hooks.example/', '8.8.8.8'],
    ['https://hooks.example/', '10.0.0.1'],
    ['https://hooks.example/', '127.0.0.1'],
    ['https://hooks.example/', '::ffff:127.0.0.1'],
    ['https://hooks.example/', '::ffff:7f00:1'],
    ['https://hooks.example/', '169.254.169.254'],
    ['https://hooks.example/', 'fe80::1'],
    ['https://hooks.example/', '8.8.4.4'],
    ['ftp://hooks.example/', '8.8.8.8'],
  ] as const)
    assert.equal(judgeWebhook(closed, new URL(url), address), null, `${url} at ${address}`)
  assert.equal(judgeWebhook(closed, new URL('https://hooks.example/'), '8.8.8.8'), 'public')
  assert.equal(judgeWebhook(ruleOf('10.0.0.0/8'), new URL('http://hooks.example/'), '10.0.0.1'), 'named')
  assert.equal(judgeWebhook(ruleOf('hooks.lan:8080'), new URL('http://hooks.lan:8080/'), '10.0.0.1'), 'named')
  assert.equal(judgeWebhook(ruleOf('hooks.lan:8080'), new URL('http://hooks.lan:8081/'), '10.0.0.1'), null)
  const good = ['https://hooks.example/a?b=c', 'https://8.8.8.8/', 'https://[2606:4700::1]/']
  for (const url of good) assert.ok(isWebhookUrl(closed, url), url)
  const bad = [
    'hooks.example', 'http://hooks.example/', 'https://user@hooks.example/', 'https://:pw@hooks.example/', 'https://a.example/#x', 'ws://a.example/',
    'https://127.0.0.1/', 'https://2130706433/', 'https://0x7f.1/', 'https://[::1]/', 'https://[::ffff:10.0.0.1]/', 'https://169.254.169.254/', 'https://8.8.4.4/',
    `https://a.example/${'x'.repeat(2_048)}`, 'http://8.8.8.8/', '', 'javascript:alert(1)', 'https://a.example/\n', ' https://a.example/', 'https://a.example/\u001b[31m', 'https://a.example/\u0085', 'file:///etc/passwd',
  ] // prettier-ignore
  for (const url of bad) assert.ok(!isWebhookUrl(closed, url), url)
  assert.ok(isWebhookUrl(ruleOf('127.0.0.0/8'), 'http://127.0.0.1:80/'))
  assert.ok(!isWebhookUrl(ruleOf('127.0.0.0/8'), 'http://10.0.0.1/'))
})
