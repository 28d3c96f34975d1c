import { request } from 'node:http'
import { isIP } from 'node:net'
import { connect, type TLSSocket } from 'node:tls'

/**
 * Opens a TLS connection to the host of an https URL through an HTTP proxy (CONNECT, RFC 9110). The proxy sees the host's name and
 * port, nothing of the request. The certificate must be the host's. Rejects with what the proxy answered.
 */
export function openTunnel(proxy: URL, url: URL, signal: AbortSignal): Promise<TLSSocket> {
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1')
  const authority = `${url.hostname}:${url.port || '443'}`
  const { promise, resolve, reject } = Promise.withResolvers<TLSSocket>()
  const asking = request({
    host: proxy.hostname.replace(/^\[(.*)\]$/, '$1'),
    port: proxy.port || '80',
    method: 'CONNECT',
    path: authority,
    headers: { host: authority, 'user-agent': 'sandyard', ...credentialOf(proxy) },
    agent: false,
    signal,
  })
  asking.on('error', reject)
  asking.on('response', (response) => {
    response.destroy()
    reject(new Error(`the proxy of HTTPS_PROXY answered ${String(response.statusCode)} to a request without a tunnel`))
  })
  asking.on('connect', ({ statusCode = 0 }, socket, head) => {
    if (statusCode < 200 || statusCode > 299) {
      socket.destroy()
      reject(new Error(`the proxy of HTTPS_PROXY refused ${authority}: status ${String(statusCode)}`))
      return
    }
    if (head.length > 0) socket.unshift(head)
    resolve(connect({ socket, host, ...(isIP(host) === 0 ? { servername: host } : {}) }))
  })
  asking.end()
  return promise
}

function credentialOf({ username, password }: URL): Record<string, string> {
  if (username === '') return {}
  const credential = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
  return { 'proxy-authorization': `Basic ${Buffer.from(credential).toString('base64')}` }
}
