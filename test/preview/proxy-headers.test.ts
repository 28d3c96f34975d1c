import assert from 'node:assert/strict'
import { test } from 'node:test'
import { linkCookieOf, replyHeaders, requestHeaders } from '../../src/preview/proxy-headers.ts'

const BY = { address: '192.0.2.1', scheme: 'https', host: '3000-abc.example.com', hidesAuthorization: true } as const
const flat = (headers: object): string[] => Object.entries(headers).flat()

test('a request goes on without what is for the proxy, what a client forged and what is secret', () => {
  const headers = {
    host: '3000-abc.example.com',
    connection: 'keep-alive, x-own',
    'x-own': '1',
    'transfer-encoding': 'chunked',
    authorization: 'Bearer msb_live_x',
    'x-forwarded-for': '6.6.6.6',
    forwarded: 'for=6.6.6.6',
    cookie: 'sandyard_preview=syp_x',
    accept: '*/*',
  }
  const sent = requestHeaders(flat(headers), headers, BY)
  assert.deepEqual(sent, [
    'host', '3000-abc.example.com', 'accept', '*/*', 'Transfer-Encoding', 'chunked', 'X-Forwarded-For', '192.0.2.1', 'X-Forwarded-Host', '3000-abc.example.com', 'X-Forwarded-Proto', 'https',
  ]) // prettier-ignore
  const own = { authorization: 'Basic eDp5', cookie: 'a=1; sandyard_preview=syp_x; b="2"' }
  const kept = requestHeaders(flat(own), own, { ...BY, hidesAuthorization: false, address: undefined })
  assert.deepEqual(kept.slice(0, 4), ['authorization', 'Basic eDp5', 'cookie', 'a=1; b="2"'])
})

test('the length of a body goes on, also if it is named as a header of one connection', () => {
  const headers = { connection: 'Content-Length, x-own', 'content-length': '5', 'x-own': '1' }
  assert.deepEqual(requestHeaders(flat(headers), headers, BY).slice(0, 2), ['content-length', '5'])
  assert.deepEqual(replyHeaders(flat(headers), headers), ['content-length', '5'])
})

test('a cookie of a sandbox is for its own preview, and can not be that of a link', () => {
  const reply = ['Set-Cookie', 'a=1; domain=example.com; Path=/', 'set-cookie', 'b=2;Domain = .example.com;Secure', 'Set-Cookie', ' sandyard_preview =x', 'X-A', '1', 'Keep-Alive', 'timeout=5'] // prettier-ignore
  assert.deepEqual(replyHeaders(reply, {}), ['Set-Cookie', 'a=1; Path=/', 'set-cookie', 'b=2;Secure', 'X-A', '1'])
})

test('the secret of a link is read from its cookie', () => {
  assert.equal(linkCookieOf('a=1; sandyard_preview=syp_x; b=2'), 'syp_x')
  assert.equal(linkCookieOf('xsandyard_preview=1'), null)
  assert.equal(linkCookieOf(undefined), null)
})
