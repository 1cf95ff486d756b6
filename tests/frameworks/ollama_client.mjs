// Ollama's JavaScript client against a server: node ollama_client.mjs URL MODEL; prints JSON.
import { Ollama } from "ollama";

const [url, model] = process.argv.slice(2);
const client = new Ollama({ host: url });
const options = { temperature: 0, num_predict: 24 };
const messages = [{ role: "user", content: "What is the capital of France?" }];

const listed = (await client.list()).models.map((one) => one.name);
const whole = await client.chat({ model, messages, options });
let streamed = "";
for await (const part of await client.chat({ model, messages, options, stream: true })) {
  streamed += part.message.content;
}
let generated = "";
for await (const part of await client.generate({ model, prompt: messages[0].content, options, stream: true })) {
  generated += part.response;
}
const { capabilities } = await client.show({ model });
let failure = "";
try {
  await client.chat({ model: "none", messages });
} catch (error) {
  failure = `${error.status_code} ${error.message}`;
}
console.log(JSON.stringify({ listed, whole: whole.message.content, streamed, generated, capabilities, failure }));
