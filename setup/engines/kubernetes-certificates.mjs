// The certificates of a cluster, and the kubeconfig files that use them.
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { SetUpFailure } from '../say.mjs'

/** Makes them in `folder`. `node` and `service` are addresses, `url` is that of the API server. */
export function makeCertificates(folder, { node, service, url }) {
  mkdirSync(folder, { mode: 0o700 })
  const newKey = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
  openssl(folder, ['req', '-x509', ...newKey, '-keyout', 'ca.key', '-out', 'ca.crt', '-subj', '/CN=sandyard-test', '-days', '30']) // prettier-ignore
  openssl(folder, ['genrsa', '-out', 'accounts.key', '2048'])
  openssl(folder, ['rsa', '-in', 'accounts.key', '-pubout', '-out', 'accounts.pub'])
  const sign = (name, subject, extensions) => {
    openssl(folder, ['req', '-new', ...newKey, '-keyout', `${name}.key`, '-out', `${name}.csr`, '-subj', subject])
    writeFileSync(join(folder, `${name}.ext`), extensions.join('\n'))
    openssl(folder, ['x509', '-req', '-in', `${name}.csr`, '-CA', 'ca.crt', '-CAkey', 'ca.key', '-CAcreateserial', '-out', `${name}.crt`, '-days', '30', '-extfile', `${name}.ext`]) // prettier-ignore
  }
  const names = ['localhost', 'kubernetes', 'kubernetes.default', 'kubernetes.default.svc'].map((name) => `DNS:${name}`)
  const addresses = ['127.0.0.1', node, service].map((address) => `IP:${address}`)
  const forServer = (alternatives) => ['extendedKeyUsage=serverAuth', `subjectAltName=${alternatives.join(',')}`]
  sign('apiserver', '/CN=kube-apiserver', forServer([...names, ...addresses]))
  sign('kubelet-server', '/O=system:nodes/CN=system:node:node', forServer(['DNS:node', `IP:${node}`]))
  const clients = {
    'apiserver-to-kubelet': '/O=system:masters/CN=kube-apiserver-kubelet-client',
    kubelet: '/O=system:nodes/CN=system:node:node',
    controllers: '/CN=system:kube-controller-manager',
    scheduler: '/CN=system:kube-scheduler',
    admin: '/O=system:masters/CN=admin',
  }
  const read = (file) => readFileSync(join(folder, file)).toString('base64')
  for (const [name, subject] of Object.entries(clients)) {
    sign(name, subject, ['extendedKeyUsage=clientAuth'])
    const user = { 'client-certificate-data': read(`${name}.crt`), 'client-key-data': read(`${name}.key`) }
    const kubeconfig = {
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'test', cluster: { server: url, 'certificate-authority-data': read('ca.crt') } }],
      users: [{ name, user }],
      contexts: [{ name: 'test', context: { cluster: 'test', user: name } }],
      'current-context': 'test',
    }
    writeFileSync(join(folder, `${name}.kubeconfig`), JSON.stringify(kubeconfig), { mode: 0o600 })
  }
}

function openssl(cwd, args) {
  const { status, stderr } = spawnSync('openssl', args, { cwd, encoding: 'utf8' })
  if (status !== 0) throw new SetUpFailure(`openssl ${args.join(' ')} failed:\n${stderr}`)
}
