import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { delimiter, join } from 'node:path'
import { makeCertificate, type TestCertificate } from './certificates.ts'
import { freePort } from './free-port.ts'
import { waitUntil } from './wait.ts'

/** A proxy of `docs/proxies/`, whose configuration is used as it is, except for ports, names and paths. */
export type ProxyName = 'nginx' | 'caddy'

/** A running proxy that ends TLS. */
export type TestProxy = {
  readonly url: string
  readonly port: number
  readonly certificate: TestCertificate
} & AsyncDisposable

/** Why a proxy can't run here, or false. For `{ skip }`. */
export function whyNoProxy(name: ProxyName): string | false {
  const folders = ['/usr/sbin', ...(process.env['PATH'] ?? '').split(delimiter)]
  const missing = [name, 'openssl'].find((program) => !folders.some((folder) => existsSync(join(folder, program))))
  return missing === undefined ? false : `${missing} is not installed (Debian: ${missing})`
}

const LIMIT_MS = 30_000
const EXAMPLES = join(import.meta.dirname, '../../docs/proxies')

/** Starts a proxy in front of the server at `target`, with its files in `folder`. */
export async function startProxy(name: ProxyName, target: URL, folder: string): Promise<TestProxy> {
  mkdirSync(folder)
  const certificate = await makeCertificate(folder)
  const port = await freePort()
  const shared: readonly (readonly [string, string])[] = [
    ['127.0.0.1:8080', target.host],
    ['/etc/ssl/sandyard/certificate.pem', certificate.certFile],
    ['/etc/ssl/sandyard/key.pem', certificate.keyFile],
  ]
  const { args, env } = COMMANDS[name]({ folder, port, shared })
  const child = spawn(name, args, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } })
  let said = ''
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      said += text
    })
  const hasEnded = (): boolean => child.exitCode !== null || child.signalCode !== null
  const stop = async (): Promise<void> => {
    child.kill('SIGTERM')
    await waitUntil(hasEnded, LIMIT_MS)
  }
  try {
    await waitUntil(async () => {
      if (hasEnded()) throw new Error(`${name} ended: ${said}`)
      return accepts(port)
    }, LIMIT_MS)
  } catch (error) {
    await stop()
    throw error
  }
  return { url: `https://localhost:${String(port)}`, port, certificate, [Symbol.asyncDispose]: stop }
}

type Setup = {
  readonly folder: string
  readonly port: number
  readonly shared: readonly (readonly [string, string])[]
}
type ProxyCommand = { readonly args: readonly string[]; readonly env: Readonly<Record<string, string>> }

const COMMANDS: Readonly<Record<ProxyName, (setup: Setup) => ProxyCommand>> = {
  nginx({ folder, port, shared }) {
    const site = replaceAll('nginx.conf', [
      ...shared,
      ['listen 443 ssl', `listen 127.0.0.1:${String(port)} ssl`],
      ['server_name sandyard.example.com', 'server_name localhost'],
    ])
    const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((kind) => `${kind}_temp_path ${folder};`)
    const http = [`access_log off;`, ...temporary, site].join('\n')
    const path = join(folder, 'nginx.conf')
    const user = process.getuid?.() === 0 ? 'user root;\n' : ''
    const main = `${user}daemon off;\npid ${folder}/pid;\nerror_log stderr;\nevents {}\n`
    writeFileSync(path, `${main}http {\n${http}\n}\n`)
    return { args: ['-e', 'stderr', '-p', folder, '-c', path], env: {} }
  },
  caddy({ folder, port, shared }) {
    const name = `https://localhost:${String(port)}`
    const site = replaceAll('Caddyfile', [...shared, ['sandyard.example.com {', `${name} {\n\tbind 127.0.0.1`]])
    const path = join(folder, 'Caddyfile')
    writeFileSync(path, `{\n\tadmin off\n\tauto_https disable_redirects\n\tgrace_period 1s\n}\n${site}`)
    const homes = { HOME: folder, XDG_DATA_HOME: folder, XDG_CONFIG_HOME: folder }
    return { args: ['run', '--config', path, '--adapter', 'caddyfile'], env: homes }
  },
}

/** An example configuration, with the words that depend on the machine replaced. */
function replaceAll(file: string, words: readonly (readonly [string, string])[]): string {
  return words.reduce(
    (text, [from, to]) => {
      if (!text.includes(from)) throw new Error(`${file} does not contain '${from}'`)
      return text.replaceAll(from, to)
    },
    readFileSync(join(EXAMPLES, file), 'utf8'),
  )
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })
}
