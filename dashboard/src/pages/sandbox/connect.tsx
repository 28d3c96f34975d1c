import { Section } from '../../ui/page.tsx'
import { Copy } from '../../ui/small.tsx'
import type { TabParts } from './tabs.ts'

/** Commands and programs that use this sandbox, ready to copy. */
export default function Connect({ sandbox: { id, name, slug } }: TabParts) {
  const origin = location.origin
  const quoted = `'${name.replaceAll("'", String.raw`'\''`)}'`
  return (
    <div class="stack">
      <p class="faint">Each needs a key: make one on the page Keys, and for SSH on the page SSH keys.</p>
      <Section title="Command line">
        <Copy
          label="Command line"
          text={`export MSB_BACKEND=cloud MSB_API_URL=${origin} MSB_API_KEY=…\nnpx msb exec ${quoted} -- sh`}
        />
      </Section>
      <Section title="SSH">
        <Copy label="SSH" text={`ssh -p 2222 ${slug}@${location.hostname}`} />
        <p class="faint">2222 is the port of the server unless SANDYARD_SSH_PORT sets another.</p>
      </Section>
      <Section title="TypeScript">
        <Copy
          label="TypeScript"
          text={`import { Sandbox } from 'microsandbox' // with MSB_BACKEND, MSB_API_URL and MSB_API_KEY as above\n\nconst sandbox = await Sandbox.get(${JSON.stringify(name)}).then((handle) => handle.connect())\nconsole.log((await sandbox.shell('uname -a')).stdout())`}
        />
      </Section>
      <Section title="REST">
        <Copy label="REST" text={`curl -H "authorization: Bearer $MSB_API_KEY" ${origin}/v1/sandboxes/${id}`} />
      </Section>
    </div>
  )
}
