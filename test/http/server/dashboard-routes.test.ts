import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import type { DashboardFile } from '../../../src/http/server/dashboard-routes.ts'
import { asCaller, makeHttpWorld } from '../../support/http-world.ts'

const file = (type: string, text: string): DashboardFile => ({
  type,
  content: Buffer.from(text),
  br: Buffer.from(`br:${text}`),
  gzip: Buffer.from(`gz:${text}`),
})
const page = file('text/html; charset=utf-8', '<!doctype html>')
const files = new Map([['/assets/main-a1b2.js', file('text/javascript; charset=utf-8', 'run()')]])
const app = makeHttpWorld({ server: { dashboard: { page, files } } })
after(() => app.close())

const BROWSER = { accept: 'text/html,application/xhtml+xml,*/*;q=0.8', 'accept-encoding': 'gzip, deflate, br' }

test('the page may run its own files and nothing else, and no browser stores it', async () => {
  const reply = await app.inject({ method: 'GET', url: '/' })
  assert.deepEqual([reply.statusCode, reply.body], [200, '<!doctype html>'])
  const policy = String(reply.headers['content-security-policy'])
  assert.match(policy, /default-src 'none'/)
  assert.match(policy, /script-src 'self';/)
  assert.match(policy, /frame-ancestors 'none'/)
  assert.doesNotMatch(policy, /unsafe|http|\*/)
  assert.deepEqual(
    [reply.headers['cache-control'], reply.headers['x-content-type-options'], reply.headers['referrer-policy']],
    ['no-store', 'nosniff', 'no-referrer'],
  )
})

test('a browser gets the page at every path of the dashboard, and a program or the API a problem as before', async () => {
  const at = async (url: string, headers: Record<string, string>) => {
    const reply = await app.inject({ method: 'GET', url, headers })
    return `${String(reply.statusCode)} ${String(reply.headers['content-type']).split(';')[0] ?? ''}`
  }
  assert.equal(await at('/sandboxes/1/terminal', BROWSER), '200 text/html')
  assert.equal(await at('/sandboxes/1/terminal', { accept: '*/*' }), '404 application/json')
  assert.equal(await at('/v1/nothing', { ...BROWSER, ...asCaller }), '404 application/json')
  assert.equal(await at('/auth/nothing', BROWSER), '404 application/json')
  assert.equal(await at('/assets/gone-a1b2.js', BROWSER), '404 application/json')
  const posted = await app.inject({ method: 'POST', url: '/sandboxes', headers: BROWSER })
  assert.equal(posted.statusCode, 404)
})

test('files are stored for ever, and come compressed to browsers that take that', async () => {
  const of = async (encodings: string) => {
    const reply = await app.inject({ method: 'GET', url: '/assets/main-a1b2.js', headers: { 'accept-encoding': encodings } }) // prettier-ignore
    assert.equal(reply.headers['cache-control'], 'public, max-age=31536000, immutable')
    assert.equal(reply.headers['vary'], 'accept-encoding')
    return [reply.headers['content-encoding'], reply.body]
  }
  assert.deepEqual(await of('gzip, deflate, br'), ['br', 'br:run()'])
  assert.deepEqual(await of('gzip'), ['gzip', 'gz:run()'])
  assert.deepEqual(await of(''), [undefined, 'run()'])
})
