import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { buildDashboard } from '../support/build-dashboard.ts'
import { request, SAME_ORIGIN, useLink } from '../support/sign-in.ts'
import { startServer, whyNoServer } from '../support/server.ts'

// The link to the dashboard that a server prints.

const TOKEN = /#token=(syl_\w+)/

describe('the link that a server prints', { skip: whyNoServer() }, () => {
  test('the first start prints one that signs the owner in once, and later starts print none into a log', async (t) => {
    await buildDashboard()
    const server = await startServer({ SANDYARD_API_KEY: '' })
    t.after(() => server.close())
    const token = TOKEN.exec(server.output())?.[1] ?? ''
    const browser = await useLink(server.url, token)
    const { body } = await browser.send('GET', '/auth/session')
    assert.deepEqual([body.role, body.is_operator, body.org.slug], ['owner', true, 'default'])
    assert.equal((await browser.send('GET', '/v1/installation/metrics')).status, 200)
    const again = await request(server.url, 'POST', '/auth/link', { body: { token }, headers: SAME_ORIGIN })
    assert.equal(again.code, 'invalid_sign_in_link')
    await server.stop()
    const before = server.output().length
    await server.start()
    assert.doesNotMatch(server.output().slice(before), TOKEN)
    assert.equal((await browser.send('GET', '/auth/session')).status, 200, 'a session outlives a restart')
    const cookie = browser.cookie.split('=')[1] ?? ''
    assert.ok(!server.output().includes(cookie), 'no log has the secret of a session')
  })

  test('with a key that the operator gave, no secret is printed, and with the dashboard off nobody signs in', async (t) => {
    const server = await startServer({ SANDYARD_DASHBOARD: 'off' })
    t.after(() => server.close())
    assert.doesNotMatch(server.output(), /token=|dashboard on/)
    assert.equal((await request(server.url, 'GET', '/auth/session', { headers: SAME_ORIGIN })).status, 404)
  })
})
