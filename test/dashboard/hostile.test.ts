import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { mustCall, type SandboxBody } from '../support/api.ts'
import { whyNoBrowser } from '../support/browser.ts'
import { openDashboard, type DashboardWorld } from '../support/dashboard-world.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'

// Texts of tenants and of what runs in their sandboxes, made to take over a page.

const MARKUP = '"><img src=x onerror="window.taken=1"><script>window.taken=1</script>'
/** What a terminal might do for a program: change the title, write to the clipboard, offer a link, print, report. */
const ESCAPES = [
  String.raw`\033]0;taken\007`,
  String.raw`\033]52;c;dGFrZW4=\007`,
  String.raw`\033]8;;javascript:window.taken=1\033\\link\033]8;;\033\\`,
  String.raw`\033P$qm\033\\`,
  String.raw`\033[5i\033[4i\033[?1049h\033[?1049l`,
].join('')
const WORKLOAD = `printf '%s\\n' '${MARKUP}'; printf '${ESCAPES}\\n'; printf '\\033[2J\\342\\200\\256desrever\\n'; touch '/tmp/${MARKUP.replaceAll('/', '')}'; while :; do sleep 1; done` // prettier-ignore

describe('hostile texts in the dashboard', { skip: whyNoServer() || whyNoBrowser() }, () => {
  let world: DashboardWorld
  let box: SandboxBody
  before(async () => {
    world = await openDashboard()
    box = await mustCall(world.server, 'create_sandbox', {
      query: { start: 'true', wait_for: 'running' },
      body: { name: MARKUP, image: DEMO_IMAGE, labels: { [MARKUP]: MARKUP }, env: [{ key: 'A', value: MARKUP }], runtime: { cmd: ['sh', '-c', WORKLOAD] } }, // prettier-ignore
    })
    await mustCall(world.server, 'create_api_key', { body: { name: MARKUP } })
  })
  after(() => world.close())

  async function assertUntouched(page: Page): Promise<void> {
    assert.equal(await page.evaluate('typeof window.taken'), 'undefined')
    assert.equal(await page.locator('#app script, #app img[src=x]').count(), 0)
    assert.match(await page.title(), /Sandyard$/)
  }

  test('names, labels, log lines, file names and payloads are shown as the texts that they are', async () => {
    const page = await world.open('/')
    await page.getByRole('link', { name: MARKUP }).click()
    await page.getByText(`Label ${MARKUP}`).waitFor()
    await assertUntouched(page)
    await page.getByRole('link', { name: 'Logs' }).click()
    await page.getByRole('log').getByText(MARKUP).waitFor()
    const log = await page.getByRole('log').innerText()
    assert.match(log, /desrever/)
    for (const control of ['\u001b', '\u202e']) assert.ok(!log.includes(control))
    await assertUntouched(page)
    await page.getByRole('link', { name: 'Files' }).click()
    await page.getByRole('button', { name: 'tmp/' }).click()
    await page.getByRole('button', { name: /^"><img/ }).waitFor()
    await assertUntouched(page)
    await page.getByRole('link', { name: 'Connect' }).click()
    await page.getByText('npx msb exec').first().waitFor()
    await page.goto(new URL('/keys', page.url()).href)
    await page.getByRole('cell', { name: MARKUP }).waitFor()
    await page.goto(new URL('/audit', page.url()).href)
    await page.getByRole('row').getByText(MARKUP).first().waitFor()
    await assertUntouched(page)
  })

  test('escape sequences of a program do nothing to the page, the clipboard or the shell', async () => {
    const page = await world.open(`/sandboxes/${box.id}/terminal`)
    const dialogs: string[] = []
    page.on('dialog', (dialog) => {
      dialogs.push(dialog.message())
      void dialog.dismiss()
    })
    const rows = page.locator('.xterm-rows')
    await rows.getByText('#').first().waitFor()
    await page.keyboard.type(`printf '${ESCAPES}'; echo; echo end-$((1+1))\n`)
    await rows.getByText('end-2').first().waitFor()
    assert.deepEqual(dialogs, [])
    await assertUntouched(page)
  })

  test('no path, parameter or fragment of an address is taken as markup', async () => {
    const page = await world.open(`/sandboxes/${encodeURIComponent(MARKUP)}/${encodeURIComponent(MARKUP)}`)
    await page.getByRole('alert').waitFor()
    await assertUntouched(page)
    await page.goto(new URL(`/?find=${encodeURIComponent(MARKUP)}#${encodeURIComponent(MARKUP)}`, page.url()).href)
    await page.getByRole('link', { name: MARKUP }).waitFor()
    await assertUntouched(page)
  })
})
