import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { buildDashboard } from '../support/build-dashboard.ts'
import { request, SAME_ORIGIN, useLink } from '../support/sign-in.ts'
import { makeProgram } from '../support/program.ts'
import { startServer, whyNoServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The link to the dashboard that a server prints.

const TOKEN = /#token=(syl_\w+)/

describe('the link that a server prints', { skip: whyNoServer() }, () => {
  test('the first start prints one that signs the owner in once, and later starts print none into a log', async (t) => {
    await buildDashboard()
    const server = await startServer({ SANDYARD_API_KEY: '' })
    t.after(() => server.close())
    // The link needs the database, so it follows the line by which a server is known to be ready.
    const [, token = ''] = await waitUntil(() => new RegExp(`${TOKEN.source}\\n`).exec(server.output()) ?? undefined)
    const browser = await useLink(server.url, token)
    const { body } = await browser.send('GET', '/auth/session')
    assert.deepEqual([body.role, body.is_operator, body.org.slug], ['owner', true, 'default'])
    assert.equal((await browser.send('GET', '/v1/installation/metrics')).status, 200)
    const again = await request(server.url, 'POST', '/auth/link', { body: { token }, headers: SAME_ORIGIN })
    assert.equal(again.code, 'invalid_sign_in_link')
    await server.stop()
    const before = server.output().length
    await server.start()
    await waitUntil(() => /dashboard on .*\n/.test(server.output().slice(before)))
    assert.doesNotMatch(server.output().slice(before), TOKEN)
    assert.equal((await browser.send('GET', '/auth/session')).status, 200, 'a session outlives a restart')
    const cookie = browser.cookie.split('=')[1] ?? ''
    assert.ok(!server.output().includes(cookie), 'no log has the secret of a session')
  })

  test('--open gives a browser a page that only its owner can read, and that signs in', async (t) => {
    await buildDashboard()
    const folder = mkdtempSync(join(tmpdir(), 'sandyard-open-'))
    t.after(() => rmSync(folder, { recursive: true }))
    const [browser, seen] = [join(folder, 'browser'), join(folder, 'seen')]
    writeFileSync(browser, `#!/bin/sh\necho "$1" > ${seen}.new && mv ${seen}.new ${seen}\n`, { mode: 0o755 })
    const settings = {
      SANDYARD_DATA_DIR: join(folder, 'data'),
      SANDYARD_PORT: '0',
      SANDYARD_API_KEY: 'key-of-a-test',
      SANDYARD_SHUTDOWN: 'stop',
      BROWSER: browser,
    }
    const program = makeProgram(['up', '--open'], settings, /ready on (\S+)/)
    const [, url = ''] = await program.start()
    t.after(() => program.kill9())
    const page = fileURLToPath((await waitUntil(() => existsSync(seen) && readFileSync(seen, 'utf8'))).trim())
    assert.equal(statSync(page).mode & 0o777, 0o600)
    const token = TOKEN.exec(readFileSync(page, 'utf8'))?.[1] ?? ''
    assert.ok(!program.output().includes(token) && token !== '', 'the link is in no log')
    const { body } = await (await useLink(url, token)).send('GET', '/auth/session')
    assert.equal(body.role, 'owner')
    await program.stop()
  })

  test('with a key that the operator gave, no secret is printed, and with the dashboard off nobody signs in', async (t) => {
    const server = await startServer({ SANDYARD_DASHBOARD: 'off' })
    t.after(() => server.close())
    assert.equal((await request(server.url, 'GET', '/auth/session', { headers: SAME_ORIGIN })).status, 404)
    await server.stop()
    assert.doesNotMatch(server.output(), /token=|dashboard on/)
  })
})
