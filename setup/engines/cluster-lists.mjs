// Reads lists of objects from the cluster of the tests, and keeps something in step with them.
import { readFileSync } from 'node:fs'
import { Agent, get } from 'node:https'

const limitMs = 5_000

/** Returns a function that resolves with the objects at a path, such as `/api/v1/pods`. `kubeconfig` is a file. */
export function makeLists(kubeconfig) {
  const { clusters, users } = JSON.parse(readFileSync(kubeconfig, 'utf8'))
  const decode = (base64) => Buffer.from(base64, 'base64')
  const agent = new Agent({
    keepAlive: true,
    ca: decode(clusters[0].cluster['certificate-authority-data']),
    cert: decode(users[0].user['client-certificate-data']),
    key: decode(users[0].user['client-key-data']),
  })
  return (path) =>
    new Promise((resolve, reject) => {
      const asking = get(`${clusters[0].cluster.server}${path}`, { agent, timeout: limitMs }, (reply) => {
        let text = ''
        reply.setEncoding('utf8').on('data', (part) => (text += part))
        reply.on('end', () =>
          reply.statusCode === 200
            ? resolve(JSON.parse(text).items)
            : reject(new Error(`${path}: ${reply.statusCode}`)),
        )
      })
      asking.on('error', reject).on('timeout', () => asking.destroy(new Error(`${path}: no answer`)))
    })
}

/** Calls `update` again and again, each time after `pollMs`. A failure is printed, because the API server may be down. */
export async function keepUpdating(update, pollMs) {
  for (;;) {
    try {
      await update()
    } catch (error) {
      console.error(error.message)
    }
    await new Promise((resolve) => setTimeout(resolve, pollMs))
  }
}
